#!/bin/bash
# Runs the commands of docs/quickstart-host.md, one block after the other, in an empty directory that goes at the end.
# Usage: demo/host/run.sh   with varve in PATH
set -euo pipefail
page=$(cd "$(dirname "$0")/../.." && pwd)/docs/quickstart-host.md
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
# A line of "## Title" becomes a heading of the output; what is between ```sh and ``` is run, and shown as it is run.
script=$(awk '
	/^## /    { printf "echo; echo \"== %s\"\n", substr($0, 4); next }
	/^```sh$/ { code = 1; next }
	/^```$/   { code = 0; next }
	code      { line = $0; gsub(/\047/, "\047\\\047\047", line); printf "echo \047$ %s\047\n%s\n", line, $0 }
' "$page")
[ "$(grep -c '^varve ' <<<"$script")" -gt 5 ] || { echo "run.sh: $page has no commands" >&2; exit 1; }
bash -euo pipefail -c "$script"
echo
echo "every command of docs/quickstart-host.md worked"
