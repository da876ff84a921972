#!/usr/bin/env bash
# Shows that the README's commands work on a fresh machine: a minimal Debian with git, make, Python and a compiler only.
#
#   tools/bare_root.sh [COMMAND ...]        by default: make demo quick; exit code 5 if no such root can be made here
#
# With BARE_SECONDS it is killed after so long, with exit code 137.
#
# Runs the commands on a clone of this repository's last commit, in a root folder of its own that debootstrap fills from
# the packages that this machine uses; apt and pip there are configured as here, so that it works behind mirrors. Needs
# root, debootstrap, and about 8 GB in TMPDIR, which are given back at the end.
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
if [ "${1:-}" != --within ]; then
  [ "$(id -u)" = 0 ] || { echo "bare_root.sh needs root" >&2; exit 5; }
  command -v debootstrap >/dev/null || { echo "bare_root.sh needs debootstrap: apt-get install debootstrap" >&2; exit 5; }
  unshare --mount --pid --fork --propagation private mount -t tmpfs none /mnt 2>/dev/null ||
    { echo "bare_root.sh cannot mount here, as in a sandbox" >&2; exit 5; }
  root=$(mktemp -d)
  chmod 755 "$root" # as / is; else nobody but root reaches anything there
  trap 'rm -rf --one-file-system "$root" "$root.log"' EXIT
  timeout --signal KILL "${BARE_SECONDS:-0}" unshare --mount --pid --fork --propagation private "$0" --within "$root" "$@"
  exit # its mounts and processes have ended with it
fi
root=$2
shift 2
commands=("$@")
[ $# -gt 0 ] || commands=(make demo quick)

codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" | head -1)
packages=git,make,python3,gcc,g++,ca-certificates
debootstrap --variant=minbase --include="$packages" "$codename" "$root" "$mirror" >"$root.log" ||
  { tail "$root.log" "$root/debootstrap/debootstrap.log" >&2 || true; echo "debootstrap failed" >&2; exit 5; }
rm "$root.log"

mount --bind "$root" "$root" # so that / is a mount there, as on a machine

# apt, pip, names and certificates as here
rm -rf "$root/etc/apt"
for path in /etc/apt /etc/pip.conf /root/.config/pip /root/.pip /etc/resolv.conf /etc/hosts /etc/ssl/certs \
  /usr/share/keyrings /usr/local/share/ca-certificates; do
  [ ! -e $path ] || { mkdir -p "$root$(dirname $path)" && cp -rLT --remove-destination $path "$root$path"; }
done
for path in $({ python3 -m pip config list 2>/dev/null || true; } | grep -oE "/[^' \"]+" | sort -u); do
  path=${path%/simple} # an index's links lead to folders next to it
  [ ! -d "$path" ] || { mkdir -p "$root$path" && mount --bind "$path" "$root$path"; }  # wheels of this machine
done
for path in /proc /sys /dev /dev/shm; do
  mount --rbind $path "$root$path"
done
mount -t proc proc "$root/proc"
git clone --quiet --depth 1 "file://$repository" "$root/root/dlio"

settings=$(env | grep -iE '^(pip_|ssl_cert|[a-z]+_proxy=)' || true)
mapfile -t settings <<<"$settings"
env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 ${settings[0]:+"${settings[@]}"} \
  chroot "$root" bash -euc 'cd /root/dlio && exec "$@"' bare "${commands[@]}"
