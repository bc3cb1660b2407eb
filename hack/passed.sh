#!/bin/bash
# Runs `go test` for those packages of a tier that have not passed on this machine before with the same inputs (hack/inputs.sh): their
# sources, those of all packages of this module that their tests import, and INPUTS. What it leaves out stands in
# build/test-times/TIER.tsv. Where there is no git checkout it runs all, as with FRESH=1.
# Usage: hack/passed.sh TIER TAG 'INPUTS' 'PACKAGES' COMMAND...    COMMAND is run with the packages behind it
set -euo pipefail

tier=$1 tag=$2 inputs=$3 packages=$4
shift 4
cache=${XDG_CACHE_HOME:-$HOME/.cache}/varve/passed
times=build/test-times

if [ -n "${FRESH:-}" ] || ! git rev-parse --git-dir >/dev/null 2>&1; then
	# shellcheck disable=SC2086 # several words
	exec "$@" $packages
fi

stamp_of() { # a package
	local folders
	folders=$(go list -tags "$tag" -test -deps -f '{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}' "$1" | sort -u | sed "s|^$PWD/||")
	# shellcheck disable=SC2086 # several words
	echo "$cache/$tier-$tag-$(tr -c 'a-z0-9\n' - <<<"$1")-$(hack/inputs.sh $folders $inputs)"
}

mkdir -p "$cache" "$times"
due=() stamps=()
for package in $packages; do
	stamp=$(stamp_of "$package")
	if [ -e "$stamp" ]; then
		printf 'relied\t%s (%s) passed on this machine at %s with the same sources\n' "$package" "$tag" "$(cat "$stamp")" >>"$times/$tier.tsv"
	else
		due+=("$package") stamps+=("$stamp")
	fi
done
[ ${#due[@]} -gt 0 ] || exit 0
"$@" "${due[@]}"
[ ! -s "$times/$tier.failures" ] || exit 0 # some tests run again, so that not all have passed yet
for stamp in "${stamps[@]}"; do
	date -u +%Y-%m-%dT%H:%M:%SZ >"$stamp.$$"
	mv "$stamp.$$" "$stamp"
done
