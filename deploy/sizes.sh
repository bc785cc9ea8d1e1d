#!/usr/bin/env bash
# Holds programs to their sizes. usage: deploy/sizes.sh [--data] FOLDER
#
# Without --data it takes a release's programs whole; with it any build's, of which it takes the embedded data alone (.rodata: models,
# dictionaries, GPU kernels), because code of a debug build says nothing of a release's.
set -euo pipefail

# Program, bytes of a release at most, bytes of data at most.
readonly BUDGETS="
hanzo-engine   66000000 21300000
engined        54000000 20500000
engine-gateway 18000000  2400000
"

data=
if [ "${1:-}" = --data ]; then data=1 && shift; fi
folder=${1:?usage: deploy/sizes.sh [--data] FOLDER}
failed=0
while read -r program whole_max data_max; do
  if [ -z "$program" ]; then continue; fi
  if [ -n "$data" ]; then
    bytes=$(size -A "$folder/$program" | awk '$1 == ".rodata" { print $2 }') max=$data_max
  else
    bytes=$(stat -c %s "$folder/$program") max=$whole_max
  fi
  echo "$program: $bytes bytes${data:+ of data}, at most $max"
  if [ "$bytes" -gt "$max" ]; then
    echo "$program is $((bytes - max)) bytes too large" >&2
    failed=1
  fi
done <<<"$BUDGETS"
exit "$failed"
