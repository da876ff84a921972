#!/bin/sh
# Brings the sources of libjpeg-turbo and libdeflate to packaging/sources, from Debian 12's source packages by apt-get;
# each must be the file that is named here. apt keeps its own lists: nothing of the system changes.
set -eu
to=$(cd "$(dirname "$0")" && pwd)/sources
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/parts" "$work/lists/partial" "$work/cache/archives/partial"
cd "$work"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
  case $file in */sources.list) name=all.list ;; *) name=$(basename "$file") ;; esac
  [ ! -e "$file" ] || sed -E 's/^(Types:) .*/\1 deb-src/; s/^deb /deb-src /' "$file" >"parts/$name"
done
apt() {
  apt-get -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts" -o "Dir::State::Lists=$work/lists" \
    -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root "$@"
}
apt update
apt source --download-only libjpeg-turbo libdeflate
sha256sum --check - <<'SUMS'
254f3642b04e309fee775123133c6464181addc150499561020312ec61c1bf7c  libjpeg-turbo_2.1.5.orig.tar.gz
89e7df898c37c3427b0f39aadcf733731321a278771d20fc553f92da8d4808ac  libdeflate_1.14.orig.tar.gz
SUMS
rm -rf "$to"
for name in libjpeg-turbo libdeflate; do
  mkdir -p "$to/$name"
  tar -C "$to/$name" --strip-components=1 --exclude=doc --exclude=java --exclude=testimages -xf "$name"_*.orig.tar.gz
done
