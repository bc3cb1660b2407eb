#!/bin/sh
# Tests the binding against nbdkit. The tests run with the libnbd and the libc in build/libnbd, because those of this
# machine may be too old.
set -eu
cd "$(dirname "$0")"
root=$(cd ../../../../build/libnbd && pwd -P)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
CGO_ENABLED=1 go test -c -o "$dir/test" .
loader="$root/usr/lib64/ld-linux-x86-64.so.2 --library-path $root/usr/lib/x86_64-linux-gnu"
nbdkit --unix - data 'data= ( 0x61*65536 ) @196608 ( 0x62*851968 )' \
	--run "NBD_SOCKET=\$unixsocket $loader $dir/test"
