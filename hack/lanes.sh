#!/bin/bash
# Runs tiers of tests side by side: the tiers of one lane one after the other, the lanes at once. What a tier prints goes to build/test-logs/TIER.log, and to
# standard output when it ends, so that two tiers do not mix. After a failure that is final the other lane ends the tier that it is at.
# Usage: hack/lanes.sh 'TIER...' 'TIER...'
set -uo pipefail

logs=build/test-logs times=build/test-times
rm -rf "$logs"
mkdir -p "$logs" "$times"

lane() {
	local tier start seconds
	for tier in $1; do
		[ ! -e "$logs/failed" ] || return 1
		start=$(date +%s)
		echo "==== $tier runs; see $logs/$tier.log"
		if make --no-print-directory "$tier" >"$logs/$tier.log" 2>&1; then
			seconds=$(($(date +%s) - start))
			printf 'seconds\t%d\n' $seconds >>"$times/$tier.tsv"
			flock "$logs" sh -c "cat '$logs/$tier.log'; echo '==== $tier passed in $seconds s'"
		else
			echo "$tier" >>"$logs/failed"
			flock "$logs" sh -c "cat '$logs/$tier.log'; echo '==== $tier FAILED after $(($(date +%s) - start)) s'"
			return 1
		fi
	done
}

pids=()
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM
for tiers in "$@"; do
	lane "$tiers" &
	pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
	wait "$pid" || status=1
done
[ ! -e "$logs/failed" ] || echo "failed: $(paste -sd' ' "$logs/failed")"
exit $status
