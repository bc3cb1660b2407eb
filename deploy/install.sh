#!/bin/sh
# Installs Varve into the cluster of $KUBECONFIG, or brings an installation up to date, and waits until it runs.
# Usage: deploy/install.sh KUSTOMIZATION_DIR [OBJECTS...]
# OBJECTS are applied last: the cluster's configuration. $KUBECTL is the program; $INSTALL_TIMEOUT the deadline, 180s by default.
set -eu
cd "$(dirname "$0")/.."
rendered=${1:?usage: deploy/install.sh KUSTOMIZATION_DIR [OBJECTS...]}
shift
kubectl=${KUBECTL:-kubectl}
timeout=${INSTALL_TIMEOUT:-180s}

apply() {
	# The controller owns what it writes into these objects (the webhook's caBundle): only a server-side apply leaves it alone.
	"$kubectl" apply --server-side --force-conflicts --field-manager=varve-install "$@" >/dev/null
}

diagnose() {
	echo "install: not ready within $timeout. Pods:" >&2
	"$kubectl" -n varve get pods -o wide >&2 || true
	"$kubectl" -n varve get events --field-selector type=Warning --sort-by .lastTimestamp >&2 || true
	for pod in $("$kubectl" -n varve get pods -o name); do
		echo "--- $pod" >&2
		"$kubectl" -n varve logs "$pod" --tail 30 >&2 || true
		"$kubectl" -n varve logs "$pod" --tail 30 --previous 2>/dev/null >&2 || true
	done
	exit 1
}

echo "install: kinds"
apply -f deploy/crd
"$kubectl" wait --for=condition=Established --timeout="$timeout" -f deploy/crd >/dev/null
echo "install: components"
apply -k "$rendered"
for object in "$@"; do
	apply -f "$object"
done
echo "install: waiting until they run"
"$kubectl" -n varve rollout status deployment/varve-controller --timeout="$timeout" || diagnose
"$kubectl" -n varve rollout status daemonset/varve-handler --timeout="$timeout" || diagnose
"$kubectl" -n varve get pods -o wide
