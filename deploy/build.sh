#!/usr/bin/env bash
# Builds the three programs of a release so that the same sources, compiler and linker give the same bytes, wherever they lie:
#
#   deploy/build.sh                       to target/release, or CARGO_TARGET_DIR
#   deploy/package.sh target/release dist
#
# With HANZO_ENGINE_CUBINS=all they have kernels for cards as machine code too (docs/guides/gpus.md), which the same ptxas makes the same; without it they
# have none, whatever this machine has.
#
# Paths of this machine are in no program: those of the sources, of what was fetched, and of what was generated have names of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

# PATH=NAME: what a folder is called in the programs, by the path that was given for it and, where that has links, by its own, because
# compilers hear now the one, now the other. The last that fits holds, so the longest comes last.
named() { printf '%s\n' "$(realpath -ms "$1")=$2" "$(realpath -m "$1")=$2"; }
names=$(
  { named "${CARGO_HOME:-$HOME/.cargo}" /cargo && named "$PWD" /hanzo-engine && named "${CARGO_TARGET_DIR:-$PWD/target}" /target; } |
    LC_ALL=C sort -u | awk -F = '{ print length($0) - length($NF) "\t" $0 }' | sort -sn | cut -f 2-
)
flags=() CFLAGS=
while IFS= read -r name; do
  flags+=("--remap-path-prefix=$name")
  CFLAGS+=$(printf ' -ffile-prefix-map=%q' "$name")
done <<<"$names"
# Encoded and escaped: folders may have spaces in their names.
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export HANZO_ENGINE_CUBINS=${HANZO_ENGINE_CUBINS:-none}
export CARGO_ENCODED_RUSTFLAGS CFLAGS CC_SHELL_ESCAPED_FLAGS=1 SOURCE_DATE_EPOCH CARGO_INCREMENTAL=0
cargo build --release --locked -p hanzo-engine -p hanzo-engine-daemon -p hanzo-engine-gateway --bins
# The budgets are of programs without machine code for GPUs and without names of functions.
if [ "$HANZO_ENGINE_CUBINS" = none ] && [ -z "${CARGO_PROFILE_RELEASE_STRIP:-}" ]; then deploy/sizes.sh "${CARGO_TARGET_DIR:-target}/release"; fi
