#!/bin/sh
# Unpacks the source of a Debian package into the current folder: apt_source.sh PACKAGE. Needs apt-get and dpkg-dev.
# Uses apt's own sources with `deb` turned to `deb-src`, in a state folder of its own: nothing of the system changes.
set -eu
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
mkdir -p "$state/parts" "$state/lists/partial" "$state/cache/archives/partial"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  [ ! -e "$file" ] || sed -E 's/^(Types:) .*/\1 deb-src/; s/^deb /deb-src /' "$file" >"$state/parts/$(basename "$file")"
done
[ ! -e "$state/parts/sources.list" ] || mv "$state/parts/sources.list" "$state/parts/all.list"
set -- "$1" -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$state/parts" \
  -o "Dir::State::Lists=$state/lists" -o "Dir::Cache=$state/cache" -o APT::Sandbox::User=root
package=$1
shift
apt-get "$@" update
apt-get "$@" source "$package"
