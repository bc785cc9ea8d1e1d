#!/bin/sh
# Makes the certificates of the tests, valid for a hundred years, with OpenSSL: an authority with a server (as it is, and
# renewed) and a client of its own, and another authority with a client. The keys protect nothing.
set -eu
cd "$(dirname "$0")"

authority() { # NAME
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=$1" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign -keyout "$1.key.pem" -out "$1.pem" 2>/dev/null
}

signed() { # NAME AUTHORITY EXTENSIONS
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$1" -keyout "$1.key.pem" -out "$1.csr" 2>/dev/null
  printf '%s\n' "$3" >"$1.ext"
  openssl x509 -req -in "$1.csr" -CA "$2.pem" -CAkey "$2.key.pem" -CAcreateserial -days 36500 -extfile "$1.ext" -out "$1.pem" 2>/dev/null
  rm "$1.csr" "$1.ext"
}

names='subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1
basicConstraints=CA:FALSE
extendedKeyUsage=serverAuth'
client='basicConstraints=CA:FALSE
extendedKeyUsage=clientAuth'
authority authority
authority stranger-authority
signed server authority "$names"
signed renewed authority "$names"
signed client authority "$client"
signed stranger stranger-authority "$client"
rm -f ./*.srl authority.key.pem stranger-authority.key.pem
