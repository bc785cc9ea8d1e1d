#!/usr/bin/env bash
# Writes out the notices of others' work in the three programs: of each crate that is linked into them, or writes a part of them
# (macros), its name, version, licence, where it comes from, and the texts that its sources have, equal ones once; then those of
# Rust's standard library.
#
#   deploy/notices.sh [PROGRAM…] >THIRD-PARTY-NOTICES
#
# Nothing is fetched: the sources are where cargo has put them to build the programs. A crate that has no licence is an error, and
# so is one that a given program names (where it may panic) and cargo does not: then it was built of something else.
set -euo pipefail
# The order of names and of files is the same everywhere.
export LC_ALL=C
programs=()
for program in "$@"; do programs+=("$(realpath "$program")"); done
cd -P "$(dirname "$0")/.."
fetched=${CARGO_HOME:-$HOME/.cargo}/registry/src
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() { echo "notices.sh: $*" >&2 && exit 1; }

# Name, version, licence and address of every crate that is not of this repository, for the machine that builds.
cargo tree --offline --locked --edges normal --prefix none --format $'{p}\t{l}\t{r}' \
  -p hanzo-engine -p hanzo-engine-daemon -p hanzo-engine-gateway >"$work/tree"
grep -vF " ($PWD/" "$work/tree" | sed -e 's/ (\*)$//' -e 's/ (proc-macro)//' -e '/^$/d' | sort -u >"$work/list"
[ -s "$work/list" ] || die "cargo tree names no crate"

folders=()
while IFS= read -r line; do
  crate=${line%%$'\t'*}
  name=${crate%% v*} version=${crate#* v}
  if [[ $version = *' '* ]]; then die "$name is of no registry: $version"; fi
  # Registries may be several.
  for folder in "$fetched"/*/"$name-$version" ""; do
    if [ -d "$folder" ]; then break; fi
  done
  [ -n "$folder" ] || die "there are no sources of $name $version in $fetched: build the programs first, or cargo fetch --locked"
  folders+=("$folder")
  printf '%s\t%s %s%s\n' "$folder" "$name" "$version" "${line#"$crate"}"
done <"$work/list" >"$work/crates"
if [ ${#programs[@]} -gt 0 ]; then
  cut -f 2 "$work/crates" | tr ' ' - | sort >"$work/known"
  { grep -ahoE 'registry/src/[^/]+/[A-Za-z0-9_.+-]+/' "${programs[@]}" || true; } | cut -d / -f 4 | sort -u >"$work/named"
  unknown=$(comm -23 "$work/named" "$work/known" | paste -sd ' ')
  [ -z "$unknown" ] || die "the programs have crates that Cargo.lock does not give them, or not without the tests: $unknown"
fi
# Every text of this kind, also of what a crate has from others.
find "${folders[@]}" -type f \( -iname 'licen[cs]e*' -o -iname 'unlicen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' \
  -o -iname 'notice*' \) ! -name '*.rs' | sort >"$work/texts"

cat <<HEAD
Others' work in Hanzo Engine

engined, engine-gateway and hanzo-engine are made of the crates below, beside their own, which are of the Apache-2.0, and of Rust's
standard library. Licences are SPDX expressions (https://spdx.org/licenses). The texts behind the list are those that come with
the crates. Sources of a crate, as they were used and unchanged, are at https://crates.io/crates/NAME/VERSION.

HEAD
awk -F '\t' '
  # A file without the ends of lines that systems differ in, and without empty lines around it.
  function read_text(file,    line, text, empty) {
    while ((getline line < file) > 0) {
      sub(/[ \t\r]+$/, "", line)
      if (line == "") { empty = empty "\n"; continue }
      text = text (text == "" ? "" : empty) line "\n"
      empty = ""
    }
    close(file)
    return text
  }
  # What a manifest says of its authors and of a licence by another name; cargo has written it, each name on a line of its own.
  function read_manifest(file,    line, inside) {
    authors = named = ""
    while ((getline line < file) > 0 && line !~ /^\[[a-z.]*dependencies/) {
      if (line ~ /^license-file = "/) { split(line, word, "\""); named = word[2] }
      if (line ~ /^authors = \[/) inside = 1
      while (inside && match(line, /"[^"]*"/)) {
        authors = authors (authors == "" ? "" : ", ") substr(line, RSTART + 1, RLENGTH - 2)
        line = substr(line, RSTART + RLENGTH)
      }
      if (line ~ /\]$/) inside = 0
    }
    close(file)
  }
  function add_text(crate, file, name,    text, n) {
    text = read_text(file)
    if (text == "") return
    if (!(text in number)) { number[text] = ++count; texts[count] = text }
    n = number[text]
    shown = shown (shown == "" ? "" : ", ") n " (" name ")"
    if (last[n] != crate) users[n] = users[n] (users[n] == "" ? "" : ", ") crate
    last[n] = crate
  }
  FILENAME == ARGV[1] {
    folder = $0
    sub(/^.*\/registry\/src\//, "", folder)
    split(folder, part, "/")
    folder = substr($0, 1, length($0) - length(folder)) part[1] "/" part[2]
    files[folder] = files[folder] $0 "\t"
    next
  }
  {
    folder = $1; crate = $2; licence = $3; address = $4; shown = ""
    read_manifest(folder "/Cargo.toml")
    if (named != "" && index(files[folder], folder "/" named "\t") == 0) files[folder] = files[folder] folder "/" named "\t"
    many = split(files[folder], file, "\t") - 1
    for (i = 1; i <= many; i++) add_text(crate, file[i], substr(file[i], length(folder) + 2))
    # "/" is how "OR" was written once.
    gsub("/", " OR ", licence)
    if (licence == "" && shown == "") { nothing = nothing (nothing == "" ? "" : ", ") crate; next }
    print crate
    print "  " (licence == "" ? "a licence of its own" : licence)
    if (address != "") print "  " address
    if (shown != "") print "  texts: " shown
    else print "  no text comes with it" (authors == "" ? "" : "; authors: " authors)
  }
  END {
    if (nothing != "") {
      print "notices.sh: neither a licence nor the text of one: " nothing | "cat >&2"
      exit 1
    }
    rule = "================================================================================"
    for (n = 1; n <= count; n++) printf "\n%s\nText %d, of %s\n\n%s", rule, n, users[n], texts[n]
  }' "$work/texts" "$work/crates"

# Its notices come with the compiler, as a page.
page=$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html
printf '\n%080d\n' 0 | tr 0 =
echo "The standard library of $(rustc --version | cut -d ' ' -f 1,2): MIT OR Apache-2.0, https://github.com/rust-lang/rust"
echo
if [ -f "$page" ]; then
  sed -e '/<head>/,/<\/head>/d' -e 's/<[^>]*>//g' -e 's/&#34;\|&quot;/"/g' -e "s/&#39;/'/g" -e 's/&#60;\|&lt;/</g' -e 's/&#62;\|&gt;/>/g' \
    -e 's/&amp;\|&#38;/\&/g' -e 's/^[ \t]*$//' "$page" | cat -s
else
  echo "Copyright (c) The Rust Project Contributors; see https://github.com/rust-lang/rust/blob/master/COPYRIGHT"
fi
