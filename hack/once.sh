#!/bin/bash
# Runs a command, unless it has passed on this machine before with the same inputs; then it says when that was, on standard output and for `make test` in
# build/test-times/NAME.tsv. Inputs are the files below PATHS, Go, the kernel and the installed packages. Where there is no git checkout it always runs, as
# with FRESH=1.
# Usage: hack/once.sh NAME 'PATHS' COMMAND...
set -euo pipefail

name=$1 paths=$2
shift 2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/varve/passed

inputs() {
	# shellcheck disable=SC2086 # paths are several words
	git ls-files -z --cached --others --exclude-standard -- $paths | sort -z | xargs -0 sha256sum 2>/dev/null || true # one that was removed has no sum
	go version
	uname -rm
	dpkg-query --show
}

if [ -n "${FRESH:-}" ] || ! git rev-parse --git-dir >/dev/null 2>&1; then
	exec "$@"
fi
stamp=$cache/$name-$(inputs | sha256sum | cut -c1-24)
if [ -e "$stamp" ]; then
	relied="passed on this machine at $(cat "$stamp") with the same $paths, Go, kernel and packages; FRESH=1 runs it again"
	echo "$name: $relied"
	mkdir -p build/test-times
	printf 'relied\t%s\n' "$relied" >>"build/test-times/$name.tsv"
	exit 0
fi
"$@"
[ ! -s "build/test-times/$name.failures" ] || exit 0 # it has tests that run again, so it has not passed yet
mkdir -p "$cache"
date -u +%Y-%m-%dT%H:%M:%SZ >"$stamp.$$"
mv "$stamp.$$" "$stamp"
