#!/usr/bin/env bash
# Installs a wheel of dist/ in a bare root folder (chroot), without compiler, headers or libjpeg, and does the main job
# there: pack, verify, load; once with the core and once with the wheel that lacks it; the pixels are compared. Needs root.
#
#   packaging/try_wheels.sh [PYTHON]       by default python3.11; its version chooses the wheel
#
# The root holds that Python, the C library that it needs, and what dlio depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v "${1:-python3.11}")
[ "$(id -u)" = 0 ] || { echo "try_wheels.sh needs root" >&2; exit 5; }
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT

prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
binary=$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
standard=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
mkdir -p "$root/tmp" "$root/proc" "$root/dev" "$root$standard" "$root$(dirname "$binary")" "$root/lib64"
cp "$binary" "$root$binary"
tar -C "$standard" --exclude=site-packages --exclude=dist-packages --exclude=test --exclude=config-* -cf - . | tar -C "$root$standard" -xf -
mkdir -p "$root/job"
"$python" -m pip download --quiet --no-index --no-deps --find-links dist --dest "$root/wheel" dlio-toolkit
"$python" -m pip install --quiet --no-compile --target "$root/job/core" "$root"/wheel/*.whl
cp -r "$root/job/core" "$root/job/pillow"
rm -rf "$root"/job/pillow/dlio*
"$python" -m pip install --quiet --no-compile --no-deps --target "$root/job/pillow" dist/*-py3-none-any.whl
cp packaging/main_job.py "$root/job/"

# the libraries that all of it needs, and no others: what links libjpeg must have brought it
{ find "$root" \( -name '*.so' -o -name '*.so.*' \) -exec ldd {} + 2>/dev/null || true; ldd "$binary"; } | grep -oE '(=> |^\s)/[^ ]+' |
  sed 's/=> //' | tr -d '\t ' | sort -u | grep -v "^$root" | while read -r library; do
  mkdir -p "$root$(dirname "$library")" && cp -L "$library" "$root$library"
done
[ -z "$(find "$root" -path "$root/job" -prune -o -name 'libjpeg*' -print)" ] || { echo "a libjpeg is in the root" >&2; exit 1; }

try='mount -t proc proc '"$root"'/proc && mount --rbind /dev '"$root"'/dev && exec env -i HOME=/tmp LANG=C.UTF-8 PATH=/none \
  PYTHONHOME='"$prefix"' PYTHONPATH=/job/$0 '"$(command -v chroot)"' '"$root"' '"$binary"' /job/main_job.py /tmp $0'
for kind in core pillow; do
  unshare --mount --pid --fork --propagation private sh -euc "$try" "$kind"
done
