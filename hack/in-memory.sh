#!/bin/bash
# Runs a command with its temporary files in memory, for tests that sync much and write little: the unit tests of the repository need less than half a gigabyte.
# Where /dev/shm has no 2 GiB, or the machine no 4, the directory is where temporary files always are.
# The directory has one name for each clone: tests that read TMPDIR or GOTMPDIR are cached only if these are what they were.
# Tests take GOTMPDIR for T.TempDir, so what Go builds is there too: build what they need before.
# Usage: hack/in-memory.sh COMMAND...
set -euo pipefail

parent=${TMPDIR:-/tmp}
if [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge $((2 << 20)) ] &&
	[ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -ge $((4 << 20)) ]; then
	parent=/dev/shm
fi
clone=$(realpath "$(dirname "$0")")
dir=$parent/varve-tests-$(id -u)-$(cksum <<<"$clone" | cut -d ' ' -f 1)

# Commands of one clone share the directory. The last one removes it.
exec 9<"$clone"
flock -s 9
mkdir -p -m 700 "$dir"
[ -O "$dir" ] || { echo "$0: $dir is somebody else's" >&2; exit 1; }
trap 'flock -n -x 9 && rm -rf "$dir"' EXIT
TMPDIR=$dir GOTMPDIR=$dir "$@" 9<&-
