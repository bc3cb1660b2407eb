#!/bin/sh
# Builds the programs that Varve is tested against and measured with (the tools of go.mod) into a content-addressed cache
# outside the repository, and points build/peers at them. An unchanged key costs nothing; from nothing it takes minutes.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

cd "$here"
key=$({ cat go.mod go.sum peers.sh; go version; go env GOOS GOARCH; } | sha256sum | cut -c1-16)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/varve/peers"
out="$cache/$key"
mkdir -p "$cache" "$root/build"

if [ ! -e "$out/bin" ]; then
	exec 9>"$cache/.lock" # two builds at once would only take turns at the same work
	flock 9
fi
if [ ! -e "$out/bin" ]; then
	echo "building $(go list tool | tr '\n' ' ')(minutes, once) into $out" >&2
	tmp=$(mktemp -d "$cache/.build.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	# kopia finds its own version; its web pages (nohtmlui) are of no use here.
	version=$(go list -m -f '{{.Version}}' github.com/versity/versitygw)
	mkdir "$tmp/bin"
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -tags nohtmlui -ldflags "-s -w -X main.Version=$version" -o "$tmp/bin/" tool
	chmod 755 "$tmp"
	rm -rf "$out"
	mv "$tmp" "$out"
	trap - EXIT
fi
ln -sfn "$out" "$root/build/peers"
touch "$out"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # builds that no clone asked for in a month
