#!/bin/bash
# Runs a command with a TMPDIR in memory, for tests that sync much and write little: the unit tests of the repository need less than half a gigabyte.
# Where /dev/shm has no 2 GiB, or the machine no 4, the directory is where temporary files always are. What Go builds stays on disk in any case.
# Usage: hack/in-memory.sh COMMAND...
set -euo pipefail

disk=${TMPDIR:-/tmp}
parent=$disk
if [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge $((2 << 20)) ] &&
	[ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -ge $((4 << 20)) ]; then
	parent=/dev/shm
fi
dir=$(mktemp -d -p "$parent" varve-tests.XXXXXX)
trap 'rm -rf "$dir"' EXIT
TMPDIR=$dir GOTMPDIR=${GOTMPDIR:-$disk} "$@"
