#!/usr/bin/env bash
# Puts what a release is into a folder, a tarball and, where dpkg-deb is, a Debian package. It builds nothing, but asks cargo what
# the programs are made of, whose notices go with them (deploy/notices.sh):
#
#   deploy/build.sh
#   deploy/package.sh target/release dist
#
# Files have the time of the last commit (SOURCE_DATE_EPOCH goes over it), and the same programs give the same bytes.
set -euo pipefail
# What is packed may be read by all, whoever packs it.
umask 022
cd "$(dirname "$0")/.."

programs=${1:?usage: deploy/package.sh FOLDER_OF_THE_PROGRAMS [FOLDER]}
dist=${2:-dist}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
architecture=$(uname -m)
name=hanzo-engine-$version-$architecture-linux
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

rm -rf "${dist:?}/$name" && mkdir -p "$dist/$name"/{bin,settings,systemd}
for program in engined engine-gateway hanzo-engine; do
  install -m 755 "$programs/$program" "$dist/$name/bin/"
done
install -m 644 systemd/engine.toml systemd/gateway.toml "$dist/$name/settings/"
install -m 644 systemd/*.service systemd/*.socket systemd/gpu.conf systemd/hanzo-engine.sysusers systemd/hanzo-engine.tmpfiles \
  "$dist/$name/systemd/"
install -m 755 deploy/install.sh "$dist/$name/"
install -m 644 LICENSE "$dist/$name/"
"$dist/$name/bin/engined" --write-documents "$dist/$name"
"$dist/$name/bin/engine-gateway" --write-documents "$dist/$name"
"$dist/$name/bin/hanzo-engine" completions --write-documents "$dist/$name"
deploy/notices.sh "$dist/$name"/bin/* >"$dist/$name/THIRD-PARTY-NOTICES"
gzip -9n "$dist/$name"/man/*.1 "$dist/$name/THIRD-PARTY-NOTICES"

same=(--sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH")
tar -C "$dist" "${same[@]}" -cf - "$name" | gzip -9n >"$dist/$name.tar.gz"
echo "$dist/$name.tar.gz"

if command -v dpkg-deb >/dev/null; then
  root=$dist/deb
  rm -rf "$root" && mkdir -p "$root/DEBIAN"
  DESTDIR=$root PREFIX=/usr "$dist/$name/install.sh" --files-only
  install -m 755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$root/DEBIAN/"
  doc=$root/usr/share/doc/hanzo-engine
  # Its licence is on every Debian.
  install -m 644 deploy/debian/copyright "$doc/"
  install -D -m 644 deploy/debian/lintian-overrides "$root/usr/share/lintian/overrides/hanzo-engine"
  # The first package of it; to Debian what comes before a release has a ~.
  release=$version version=${version/-/\~}-1
  sed -e "s/@VERSION@/$version/" -e "s/@RELEASE@/$release/" -e "s/@DATE@/$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")/" \
    deploy/debian/changelog | gzip -9n >"$doc/changelog.Debian.gz"
  printf '%s\n' /etc/hanzo-engine/engine.toml /etc/hanzo-engine/gateway.toml >"$root/DEBIAN/conffiles"
  # What `dpkg --verify` compares; settings are the administrator's.
  (cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  debian=$(dpkg --print-architecture)
  # The newest of glibc's versions that the programs ask for is the oldest that starts them.
  glibc=$(cat "$root"/usr/bin/* | grep -aoE 'GLIBC_2\.[0-9]+' | sort -uV | tail -n 1 || true)
  # In KiB, of files alone: what a folder takes is the disk's to say.
  size=$(find "$root" -path "$root/DEBIAN" -prune -o -type f -printf '%s\n' | awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }')
  sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$debian/" -e "s/@SIZE@/$size/" -e "s/@GLIBC@/${glibc#GLIBC_}/" \
    deploy/debian/control >"$root/DEBIAN/control"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/hanzo-engine_${version}_$debian.deb" >/dev/null
  rm -rf "$root"
  echo "$dist/hanzo-engine_${version}_$debian.deb"
fi
