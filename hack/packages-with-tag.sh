#!/bin/sh
# Prints the packages of this module that have a test file behind one of the given build tags.
set -eu
for tag in "$@"; do
	grep -rlE --include='*_test.go' "^//go:build .*\b$tag\b" internal test cmd deploy docs demo bench 2>/dev/null || true
done | xargs -r -n1 dirname | sort -u | sed 's|^|./|'
