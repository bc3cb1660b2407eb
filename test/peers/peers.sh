#!/bin/sh
# Builds programs that Varve is tested against and measured with into a content-addressed cache outside the repository, and
# points build/NAME at them. They are the tools of a module of their own, so that they are linked with the versions that their
# release was linked with. An unchanged key costs nothing; from nothing it takes minutes.
# Usage: test/peers/peers.sh NAME DIRECTORY=MODULE...
set -eu

name=${1:?usage: peers.sh NAME DIRECTORY=MODULE...}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

cd "$here"
sources=$(for peer in "$@"; do find -L "${peer%%=*}" -type f ! -name '*_test.go' | sort; done)
key=$({ echo "$sources" | xargs cat peers.sh; go version; go env GOOS GOARCH; } | sha256sum | cut -c1-16)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/varve/peers"
out="$cache/$key"
mkdir -p "$cache" "$root/build"

# build builds all tools of a module into a directory's bin, and lets the module's files.sh, if it has one, add to the directory.
# A version is passed because versitygw and velero do not find their own; kopia does. kopia's web pages (nohtmlui) are of no use here.
# No flag of velero's changes the address, *:8080, at which controller-runtime shows metrics beside its own, so two servers on one
# machine would get in each other's way: its variable is set to what means none. KubeVirt's virt-launcher needs cgo for
# libvirt and libnbd. Its other programs are built with cgo too, so that the packages that they share are compiled once.
build() {
	cd "$here/$1"
	echo "building $1 (minutes, once) into $out" >&2
	cgo=0 tags= variable=main.Version more=
	case $1 in
	kopia) tags=nohtmlui ;;
	kubevirt*) cgo=1 tags=libvirt_dlopen variable=kubevirt.io/client-go/version.gitVersion ;;
	velero)
		variable=github.com/vmware-tanzu/velero/pkg/buildinfo.Version
		more='-X sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress=0'
		;;
	esac
	more="-s -w -X $variable=$(go list -m -f '{{.Version}}' "$2") $more"
	CGO_ENABLED=$cgo nice go build -trimpath -buildvcs=false -tags "$tags" -ldflags "$more" -o "$3/bin/" tool
	if [ -e files.sh ]; then
		sh files.sh "$3"
	fi
}

if [ ! -e "$out/bin" ]; then
	exec 9>"$cache/.lock" # two builds at once would only take turns at the same work
	flock 9
fi
if [ ! -e "$out/bin" ]; then
	tmp=$(mktemp -d "$cache/.build.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	mkdir "$tmp/bin"
	for peer in "$@"; do
		build "${peer%%=*}" "${peer#*=}" "$tmp"
	done
	chmod 755 "$tmp"
	rm -rf "$out"
	mv "$tmp" "$out"
	trap - EXIT
fi
ln -sfn "$out" "$root/build/$name"
touch "$out"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # builds that no clone asked for in a month
