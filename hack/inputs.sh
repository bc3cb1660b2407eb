#!/bin/bash
# Prints a hash of what the result of a test depends on: the files at and below PATHS in the work tree, Go, the kernel and the
# installed packages.
# Usage: hack/inputs.sh PATH...
set -euo pipefail
{
	git ls-files -z --cached --others --exclude-standard -- "$@" | sort -z | xargs -0 sha256sum 2>/dev/null || true # one that was removed has no sum
	go version
	uname -rm
	dpkg-query --show
} | sha256sum | cut -c1-24
