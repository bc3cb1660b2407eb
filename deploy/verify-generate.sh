#!/bin/sh
# Generates in a copy of the tree and compares: the tree itself is not touched, and uncommitted work does not matter.
set -eu
cd "$(dirname "$0")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
tar -cf - --exclude=./build --exclude=./.git . | tar -xf - -C "$copy"
mkdir -p "$copy/build"
make -C "$copy" -s generate
for path in api deploy internal/launcher/launcherpb docs/cli.md docs/api.md docs/metrics.md; do
	diff -ru "$path" "$copy/$path" || { echo "verify-generate: $path is out of date: run make generate" >&2; exit 1; }
done
