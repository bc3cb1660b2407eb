#!/bin/bash
# Runs a command whose Go programs, built with that command, stand still at random, as on a busy machine: a goroutine before it runs on and after a system
# call, one time in 128 and 64, for up to 20 ms each. Others run meanwhile, so that they see the state that lasts microseconds elsewhere.
# Usage: hack/stalls.sh go test ...
set -euo pipefail

root=$(go env GOROOT)/src/runtime
dir=${XDG_CACHE_HOME:-$HOME/.cache}/varve/stalls/$(cat "$0" "$root/proc.go" | sha256sum | cut -c1-24)
if [ ! -e "$dir" ]; then
	mkdir -p "$dir.$$"
	awk '
		{ print }
		/^func execute\(gp \*g/ { here = "mp := getg"; odds = 128 }
		/^func exitsyscall\(\)/ { here = "gp.m.locks\\+\\+"; odds = 64 }
		here != "" && $0 ~ here {
			print "\tif cheaprandn(" odds ") == 0 {\n\t\tusleep(cheaprandn(20000))\n\t}"
			here = ""
			n++
		}
		END { if (n != 2) { print "'"$0"': the scheduler of this Go has another shape: say where it may stall" >"/dev/stderr"; exit 1 } }
	' "$root/proc.go" >"$dir.$$/proc.go"
	printf '{"Replace": {"%s": "%s"}}\n' "$root/proc.go" "$dir/proc.go" >"$dir.$$/overlay.json"
	mv -T "$dir.$$" "$dir" 2>/dev/null || rm -r "$dir.$$" # another one was quicker
fi
GOFLAGS="${GOFLAGS:-} -overlay=$dir/overlay.json" exec "$@"
