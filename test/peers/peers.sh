#!/bin/sh
# Builds programs that Varve is tested against and measured with into a content-addressed cache outside the repository, and
# points build/NAME at them. Each is the tool of a module of its own, so that it is linked with the versions that its release
# was linked with. An unchanged key costs nothing; from nothing it takes minutes.
# Usage: test/peers/peers.sh NAME DIRECTORY=MODULE...
set -eu

name=${1:?usage: peers.sh NAME DIRECTORY=MODULE...}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

cd "$here"
key=$({ for peer in "$@"; do cat "${peer%%=*}/go.mod" "${peer%%=*}/go.sum"; done; cat peers.sh; go version; go env GOOS GOARCH; } | sha256sum | cut -c1-16)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/varve/peers"
out="$cache/$key"
mkdir -p "$cache" "$root/build"

# build builds the tool of a module into a directory. A version is passed because versitygw does not find its own; kopia does.
# kopia's web pages (nohtmlui) are of no use here.
build() {
	cd "$here/$1"
	echo "building $1 (minutes, once) into $out" >&2
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags nohtmlui -ldflags "-s -w -X main.Version=$(go list -m -f '{{.Version}}' "$2")" -o "$3/" tool
}

if [ ! -e "$out/bin" ]; then
	exec 9>"$cache/.lock" # two builds at once would only take turns at the same work
	flock 9
fi
if [ ! -e "$out/bin" ]; then
	tmp=$(mktemp -d "$cache/.build.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	mkdir "$tmp/bin"
	for peer in "$@"; do
		build "${peer%%=*}" "${peer#*=}" "$tmp/bin"
	done
	chmod 755 "$tmp"
	rm -rf "$out"
	mv "$tmp" "$out"
	trap - EXIT
fi
ln -sfn "$out" "$root/build/$name"
touch "$out"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # builds that no clone asked for in a month
