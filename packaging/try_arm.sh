#!/usr/bin/env bash
# Runs tests/native and the main job with an ARM wheel of dist/, on a processor that qemu-user emulates, with a Debian's
# Python for ARM. In the FOLDER of an earlier main job on x86-64, the pixels must be the same, bit by bit.
#
#   packaging/try_arm.sh [FOLDER [DEBIAN]]       needs debootstrap, qemu-user-static and root
#
# DEBIAN, by default this machine's, chooses the wheel: bookworm has Python 3.11, trixie 3.13.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "${1:-$(mktemp -d)}")
own=$(. /etc/os-release && echo "$VERSION_CODENAME")
debian=${2:-$own}
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $own" | head -1)
debootstrap --foreign --arch arm64 --variant minbase --include python3,libstdc++6 "$debian" "$root" "$mirror" >/dev/null
ln -sf usr/lib "$root/lib" # where newer packages expect it
for package in "$root"/var/cache/apt/archives/{lib,python3,zlib}*.deb; do
  dpkg -x "$package" "$root"
done

python=$(basename "$root"/usr/bin/python3.[0-9]*)
pip=(python3 -m pip --disable-pip-version-check)
arm=(--only-binary :all: --python-version "${python#python}"
  --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64
  --platform manylinux_2_24_aarch64 --platform manylinux2014_aarch64)
"${pip[@]}" download --quiet --no-index --no-deps --find-links dist --dest "$root/wheel" "${arm[@]}" dlio-toolkit
"${pip[@]}" install --quiet --target "$root/job" "${arm[@]}" "$root"/wheel/*_aarch64.whl hypothesis pytest pytest-timeout
cp -r tests pyproject.toml packaging/main_job.py "$root/job"
cd "$root/job"
export QEMU_CPU=cortex-a72 # without pointer authentication, whose emulation takes minutes for an import of numpy
run=(qemu-aarch64-static -L "$root" -E PYTHONHOME="$root/usr" -E PYTHONPATH="$root/job" "$root/usr/bin/$python")
"${run[@]}" main_job.py "$folder" core
# qemu-user starts no Python of ARM from within, and a wheel holds no C++: the tests that need these are left out
"${run[@]}" -m pytest -q -p no:cacheprovider tests/native -m "not jobs" --ignore tests/native/test_allocations.py -k "not (all_ways or memory_of_its_own or that_load_pillow or leaves_no_memory_behind or says_what_is_missing)"
