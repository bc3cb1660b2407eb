#!/bin/bash
# Runs a command whose Go programs, built with that command, stand still at random, as on a busy machine: a goroutine before it runs on and after a system
# call, one time in 128 and 64, for up to 20 ms each. Others run meanwhile, so that they see the state that lasts microseconds elsewhere. With STALLS="4000 2000000"
# it is one time in 8000 and 4000, for up to 2 s: that shows who gives others too little time.
# Usage: hack/stalls.sh go test ...
set -euo pipefail

read -r odds micros <<<"${STALLS:-64 20000}"
root=$(go env GOROOT)/src/runtime
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
awk -v odds="$odds" -v micros="$micros" '
	{ print }
	/^func execute\(gp \*g/ { here = "mp := getg"; one = 2 * odds }
	/^func exitsyscall\(\)/ { here = "gp.m.locks\\+\\+"; one = odds }
	here != "" && $0 ~ here {
		print "\tif cheaprandn(" one ") == 0 {\n\t\tusleep(cheaprandn(" micros "))\n\t}"
		here = ""
		n++
	}
	END { if (n != 2) { print "'"$0"': the scheduler of this Go has another shape: say where it may stall" >"/dev/stderr"; exit 1 } }
' "$root/proc.go" >"$dir/proc.go"
printf '{"Replace": {"%s": "%s"}}\n' "$root/proc.go" "$dir/proc.go" >"$dir/overlay.json"
GOFLAGS="${GOFLAGS:-} -overlay=$dir/overlay.json" "$@"
