#!/bin/bash
# Makes room on the disk of Go's build cache if less than 30 GB are free: the tests need up to 15 GB. Go itself keeps for five
# days whatever was built, which is 50 GB after a day of many commits. What was not used for six hours goes.
set -euo pipefail
cache=$(go env GOCACHE)
free=$(df --output=avail -B 1G "$cache" | tail -1)
[ "$free" -lt 30 ] || exit 0
echo "trim-build-cache: $free GB are free beside $cache: what was not used for six hours goes"
find "$cache" -mindepth 2 -type f -mmin +360 -delete
