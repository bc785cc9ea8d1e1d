#!/usr/bin/env bash
# Installs what lies beside this script, as root, for systemd; nothing is started.
#
#   ./install.sh                 to /usr/local, settings to /etc/hanzo-engine
#   ./install.sh --uninstall     takes it away again, but settings that were changed, and what the services keep
#
# PREFIX=/opt/hanzo-engine goes over /usr/local; DESTDIR is put before every path, for packages, with --files-only.
set -euo pipefail
# Folders that are made on the way are for all to read.
umask 022
here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
to=${DESTDIR:-}
# Where systemd looks: a package's files are the vendor's, others are the administrator's.
case $prefix in
  /usr) units=/usr/lib/systemd/system sysusers=/usr/lib/sysusers.d tmpfiles=/usr/lib/tmpfiles.d ;;
  *) units=/etc/systemd/system sysusers=/etc/sysusers.d tmpfiles=/etc/tmpfiles.d ;;
esac
settings=/etc/hanzo-engine
share=$prefix/share

die() { echo "install.sh: $*" >&2 && exit 1; }
running() { command -v systemctl >/dev/null && [ -d /run/systemd/system ]; }

# Every file: mode, where it lies here, where it goes.
files() {
  local file
  for file in engined engine-gateway hanzo-engine; do echo "755 bin/$file $prefix/bin/$file"; done
  for file in engined.service engine-gateway.service engine-gateway.socket; do echo "644 systemd/$file $units/$file"; done
  echo "644 systemd/hanzo-engine.sysusers $sysusers/hanzo-engine.conf"
  echo "644 systemd/hanzo-engine.tmpfiles $tmpfiles/hanzo-engine.conf"
  echo "644 systemd/gpu.conf $share/doc/hanzo-engine/gpu.conf"
  echo "644 LICENSE $share/doc/hanzo-engine/copyright"
  echo "644 THIRD-PARTY-NOTICES.gz $share/doc/hanzo-engine/THIRD-PARTY-NOTICES.gz"
  for file in "$here"/man/*.1.gz; do echo "644 man/${file##*/} $share/man/man1/${file##*/}"; done
  for file in "$here"/completions/bash/*; do echo "644 completions/bash/${file##*/} $share/bash-completion/completions/${file##*/}"; done
  for file in "$here"/completions/zsh/*; do echo "644 completions/zsh/${file##*/} $share/zsh/vendor-completions/${file##*/}"; done
  for file in "$here"/completions/fish/*; do echo "644 completions/fish/${file##*/} $share/fish/vendor_completions.d/${file##*/}"; done
}

copy() {
  local mode from target
  while read -r mode from target; do
    install -D -m "$mode" "$here/$from" "$to$target"
    # The units name the programs by their paths.
    case $target in *.service) sed -i "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|" "$to$target" ;; esac
  done < <(files)
}

case ${1:-} in
  --files-only)
    copy
    install -d -m 755 "$to$settings"
    install -m 644 "$here/settings/engine.toml" "$here/settings/gateway.toml" "$to$settings/"
    ;;
  --uninstall)
    [ "$(id -u)" = 0 ] || die "needs root"
    if running; then systemctl disable --now engine-gateway.socket engine-gateway.service engined.service 2>/dev/null || true; fi
    while read -r _ _ target; do rm -f "$to$target"; done < <(files)
    for file in engine.toml gateway.toml; do
      if cmp -s "$here/settings/$file" "$to$settings/$file"; then rm -f "$to$settings/$file"; fi
    done
    # Folders that were made for them, where nothing else is in them; the innermost first.
    for folder in "$share"/doc/{hanzo-engine,} "$share"/bash-completion/{completions,} "$share"/zsh/{vendor-completions,} \
      "$share"/fish/{vendor_completions.d,} "$share/man/man1" "$sysusers" "$settings"; do
      rmdir "$to$folder" 2>/dev/null || true
    done
    if running; then systemctl daemon-reload; fi
    echo "removed; what the services keep stays in /var/lib/hanzo-engine, changed settings in $settings, and the user hanzo-engine"
    ;;
  "")
    [ "$(id -u)" = 0 ] || die "needs root"
    copy
    systemd-sysusers "$to$sysusers/hanzo-engine.conf"
    systemd-tmpfiles --create "$to$tmpfiles/hanzo-engine.conf"
    for file in engine.toml gateway.toml; do
      # Settings that are there stay; the new ones lie beside them.
      if [ -e "$to$settings/$file" ] && ! cmp -s "$here/settings/$file" "$to$settings/$file"; then
        install -m 644 "$here/settings/$file" "$to$settings/$file.new"
        echo "kept $settings/$file; the new one is $settings/$file.new"
      else
        install -m 644 "$here/settings/$file" "$to$settings/$file"
      fi
    done
    if running; then systemctl daemon-reload; fi
    echo "installed; now: systemctl enable --now engined engine-gateway"
    ;;
  *) die "unknown: $1; see the top of this script" ;;
esac
