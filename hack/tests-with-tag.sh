#!/bin/sh
# Prints a regular expression for `go test -run`: the tests in files behind a build tag. Their packages' other tests are unit tests, which
# the unit tier has run. A file behind "a || b" has tests of a, and what those of b need.
set -eu
grep -rlE --include='*_test.go' "^//go:build $1\b" internal test cmd deploy docs bench | xargs grep -hoE '^func Test[A-Za-z0-9_]+' |
	sed 's/^func //' | grep -vx TestMain | sort -u | paste -sd'|' | sed 's/.*/^(&)$/'
