#!/usr/bin/env bash
# Builds the three programs of a release so that the same sources and compiler give the same bytes, wherever they lie:
#
#   deploy/build.sh                       to target/release, or CARGO_TARGET_DIR
#   deploy/package.sh target/release dist
#
# Paths of this machine are in no program: those of the sources, of what was fetched, and of what was generated have names of their own.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
fetched=$(realpath -m "${CARGO_HOME:-$HOME/.cargo}")
# The last that fits holds, so the longest come last.
export RUSTFLAGS="--remap-path-prefix=$fetched=/cargo --remap-path-prefix=$PWD=/hanzo-engine --remap-path-prefix=$target=/target"
export CFLAGS="-ffile-prefix-map=$fetched=/cargo -ffile-prefix-map=$target=/target" CARGO_INCREMENTAL=0
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
cargo build --release --locked -p hanzo-engine -p hanzo-engine-daemon -p hanzo-engine-gateway --bins
