#!/bin/bash
# Runs a command, unless it has passed on this machine before with the same inputs (hack/inputs.sh); then it says when that was, on standard output and for
# `make test` in build/test-times/NAME.tsv. Where there is no git checkout it always runs, as with FRESH=1.
# Usage: hack/once.sh NAME 'PATHS' COMMAND...
set -euo pipefail

name=$1 paths=$2
shift 2
cache=${XDG_CACHE_HOME:-$HOME/.cache}/varve/passed

if [ -n "${FRESH:-}" ] || ! git rev-parse --git-dir >/dev/null 2>&1; then
	exec "$@"
fi
# shellcheck disable=SC2086 # paths are several words
stamp=$cache/$name-$(hack/inputs.sh $paths)
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
