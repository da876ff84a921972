#!/usr/bin/env bash
# Makes the environment .venv with every extra of dlio and the `dlio` command, on Debian 12 or Ubuntu with Python 3.11.
# What the compiled core needs from the system is installed where it is missing and we may.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-$(command -v python3.11 || command -v python3)}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "dlio needs Python 3.11 or newer, $python is $("$python" --version): name another one, PYTHON=... make venv" >&2
  exit 5
}

missing=()
command -v g++ >/dev/null || missing+=(g++)
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
own=$([ "$python" = "/usr/bin/python$version" ] && echo "python$version" || echo python3)
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=("$own-venv")
"$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing+=("$own-dev")
# Not needed, but images are decoded in a third of the time with them.
faster=()
echo '#include <stdio.h>
#include <jpeglib.h>' | g++ -E -x c++ - >/dev/null 2>&1 || faster+=(libjpeg-dev)
echo '#include <libdeflate.h>' | g++ -E -x c++ - >/dev/null 2>&1 || faster+=(libdeflate-dev)
as_root=$([ "$(id -u)" = 0 ] || echo sudo)
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing what the compiled core needs: ${missing[*]}"
  { $as_root apt-get update -q && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -qy --no-install-recommends "${missing[@]}" "${faster[@]}"; } || {
    echo "these packages are missing: ask for 'apt-get install ${missing[*]} ${faster[*]}'" >&2
    exit 5
  }
elif [ ${#faster[@]} -gt 0 ]; then
  { ${as_root:+sudo -n} apt-get update -q && ${as_root:+sudo -n} env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${faster[@]}"; } ||
    echo "Pillow will decode images, which takes longer: ask for 'apt-get install ${faster[*]}'" >&2
fi

echo "making .venv with torch, TensorFlow and what else the extras and tests need: about 3 GB, some minutes"
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip uninstall --quiet --yes dlio 2>/dev/null || true # as dlio-toolkit was called: it would take the new one's files along
pip=(.venv/bin/python -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" torch==2.13.0 # first and pinned: a CPU build is taken where one is at hand
"${pip[@]}" --editable '.[all,test]'
"${pip[@]}" --no-deps elpv-dataset==1.0.0.post1 # the demo's images
rm -rf .venv/peers # pip adds to a folder, and replaces nothing in it
"${pip[@]}" --no-deps --target .venv/peers --requirement tests/peers/requirements.txt
rm -rf .venv/peers/tests # of a wheel; dlio's would not be found
for sdist in webdataset-1.0.2 accelerate-1.15.0; do # wheels have no tests
  "${pip[@]/install/download}" --no-deps --no-binary "${sdist%-*}" --dest .venv/peers "${sdist/-/==}"
  tar xzf ".venv/peers/$sdist.tar.gz" --directory .venv/peers
done
.venv/bin/dlio --version
