#!/bin/bash
# Knows which packages of a tier have passed on this machine before with the same inputs (hack/inputs.sh): their sources, those of
# all packages of this module that their tests import, and PATHS. Where there is no git checkout none has, as with FRESH=1.
# Usage: hack/passed.sh due TIER TAG 'PATHS'     print the packages with tests behind TAG that have to run
#        hack/passed.sh note TIER TAG 'PATHS'    note that all of them have passed now
set -euo pipefail

what=$1 tier=$2 tag=$3 paths=$4
cache=${XDG_CACHE_HOME:-$HOME/.cache}/varve/passed

stamp() { # of a package
	local folders
	folders=$(go list -tags "$tag" -test -deps -f '{{if .Module}}{{if .Module.Main}}{{.Dir}}{{end}}{{end}}' "$1" | sort -u | sed "s|^$PWD/||")
	# shellcheck disable=SC2086 # several words
	echo "$cache/$tier-$(tr -c 'a-z0-9\n' - <<<"$1")-$(hack/inputs.sh $folders $paths)"
}

if [ -n "${FRESH:-}" ] || ! git rev-parse --git-dir >/dev/null 2>&1; then
	[ "$what" = note ] || hack/packages-with-tag.sh "$tag"
	exit 0
fi
times=build/test-times
mkdir -p "$cache" "$times"
[ "$what" = due ] || [ ! -s "$times/$tier.failures" ] || exit 0 # it has tests that run again, so it has not passed yet
for package in $(hack/packages-with-tag.sh "$tag"); do
	stamp=$(stamp "$package")
	case $what in
	due)
		if [ ! -e "$stamp" ]; then
			echo "$package"
		else
			printf 'relied\t%s passed on this machine at %s with the same sources\n' "$package" "$(cat "$stamp")" >>"$times/$tier.tsv"
		fi
		;;
	note) [ -e "$stamp" ] || date -u +%Y-%m-%dT%H:%M:%SZ >"$stamp" ;;
	esac
done
