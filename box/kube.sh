#!/bin/sh
# Builds Kubernetes (cmd/kube), CoreDNS (cmd/coredns) and the two programs of CSI snapshots into a content-addressed
# cache outside the repository, and points build/kube at it. The snapshotter's programs are packages main of their own,
# so they cannot join the multi-call binary; they share its compiled libraries. build/kube/crd has the CRDs of the
# VolumeSnapshot API.
# The key is a hash of everything that decides the result, so that clones and branches share one build, and an
# unchanged key costs nothing. From nothing it takes about 6 minutes on 2 cores, from a warm Go build cache under one.
set -eu

box=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$box/.." && pwd)
version=v1.36.3 # of k8s.io/kubernetes in go.mod; checked below
snapshotter=github.com/kubernetes-csi/external-snapshotter
programs="etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl"

cd "$box"
grep -q "k8s.io/kubernetes $version\$" go.mod || {
	echo "kube.sh: go.mod does not require k8s.io/kubernetes $version: change both" >&2
	exit 1
}
sources="go.mod go.sum kube.sh cmd/kube/*.go cmd/coredns/*.go"
# shellcheck disable=SC2086 # sources are several patterns
key=$({ cat $sources; go version; go env GOOS GOARCH; } | sha256sum | cut -c1-16)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/varve/kube"
out="$cache/$key"
mkdir -p "$cache" "$root/build"

if [ ! -e "$out/kube" ]; then
	exec 9>"$cache/.lock" # two builds at once would only take turns at the same work
	flock 9
fi
if [ ! -e "$out/kube" ]; then
	echo "building Kubernetes $version (minutes, once) into $out" >&2
	tmp=$(mktemp -d "$cache/.build.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	flags="-s -w"
	for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
		flags="$flags -X $p.gitVersion=$version -X $p.gitMajor=1 -X $p.gitMinor=36 -X $p.gitTreeState=clean"
		flags="$flags -X $p.gitCommit= -X $p.buildDate=1970-01-01T00:00:00Z" # reproducible: no clock in the binary
	done
	flags="$flags -X main.version=$(go list -m -f '{{.Version}}' $snapshotter/v8)"
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "$flags" -o "$tmp/" \
		./cmd/kube ./cmd/coredns $snapshotter/v8/cmd/snapshot-controller $snapshotter/v8/cmd/csi-snapshotter
	mkdir "$tmp/bin" "$tmp/crd"
	for p in $programs; do ln -s ../kube "$tmp/bin/$p"; done
	for p in coredns snapshot-controller csi-snapshotter; do ln -s "../$p" "$tmp/bin/$p"; done
	cp "$(go list -m -f '{{.Dir}}' $snapshotter/client/v8)"/config/crd/snapshot.storage.k8s.io_*.yaml "$tmp/crd/"
	chmod 644 "$tmp/crd/"*
	chmod 755 "$tmp"
	rm -rf "$out"
	mv "$tmp" "$out"
	trap - EXIT
fi
ln -sfn "$out" "$root/build/kube"
touch "$out"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # builds that no clone asked for in a month
