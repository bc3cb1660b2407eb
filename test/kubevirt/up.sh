#!/bin/sh
# Installs upstream's KubeVirt into the cluster of $KUBECONFIG, or brings it up to date, and waits until it is Deployed.
# The nodes have its images already.
# Usage: test/kubevirt/up.sh
# $KUBECTL is the program; $KUBEVIRT_TIMEOUT is the deadline in seconds, 900 by default: a busy machine takes minutes.
set -eu
cd "$(dirname "$0")/../.."
kubectl=${KUBECTL:-kubectl}
limit=${KUBEVIRT_TIMEOUT:-900}
manifest=build/kubevirt/kubevirt.yaml
start=$(date +%s)
. deploy/owned-kinds.sh

say() {
	printf 'kubevirt %4ds  %s\n' $(($(date +%s) - start)) "$1"
}

apply() {
	# The CRD is too large for the annotation of a client-side apply. The operator owns fields of some objects.
	"$kubectl" apply --server-side --force-conflicts --field-manager=varve-test "$@" >/dev/null
}

# condition prints the status, the reason and the message of one of KubeVirt's conditions.
condition() {
	"$kubectl" -n kubevirt get kubevirt kubevirt \
		-o "jsonpath={range .status.conditions[?(@.type=='$1')]}{.status} {.reason}: {.message}{end}"
}

# unready prints the pods that are not ready, with what kubectl says about each.
unready() {
	pods=$("$kubectl" -n kubevirt get pods --no-headers --field-selector status.phase!=Succeeded,status.phase!=Failed) ||
		return 1
	echo "$pods" | awk '{ split($2, ready, "/") } ready[1] != ready[2] { print $1, $3 }'
}

# progress says in one line how far KubeVirt is.
progress() {
	phase=$("$kubectl" -n kubevirt get kubevirt kubevirt -o 'jsonpath={.status.phase}') || return 1
	waiting=$(unready) || return 1
	waiting=$(echo "$waiting" | awk '{ printf "%s%s", (NR > 1 ? ", " : ""), $0 }')
	echo "phase ${phase:-none yet}${waiting:+; not ready: $waiting}"
}

diagnose() {
	{
		echo "kubevirt: not Deployed within $limit seconds"
		echo "Available: $(condition Available)"
		echo "Degraded: $(condition Degraded)"
		"$kubectl" -n kubevirt get pods -o wide
		"$kubectl" -n kubevirt get events --field-selector type=Warning --sort-by .lastTimestamp | tail -20
		for pod in $(unready | awk '{print $1}'); do
			echo "--- $pod"
			"$kubectl" -n kubevirt logs "$pod" --all-containers --tail 20 || true
		done
	} >&2 || true
	exit 1
}

read_owners
if [ "$(owner_of virtualmachines.kubevirt.io)" = varve ]; then
	echo "kubevirt: refused: this cluster has Varve's own kinds of KubeVirt's groups (virtualmachines.kubevirt.io)" >&2
	echo "kubevirt: run \`make uninstall\` first, or use another box (VARVE_BOX_DIR)." >&2
	exit 1
fi
say "operator $(cat build/kubevirt/version)"
apply -f "$manifest"
"$kubectl" wait --for=condition=Established --timeout=180s crd/kubevirts.kubevirt.io >/dev/null
# KubeVirt's pods run only on a node with this label. The box does not set it.
node=$("$kubectl" get nodes -o name | head -n 1)
"$kubectl" label --overwrite "$node" node-role.kubernetes.io/control-plane= >/dev/null
# The operator has a webhook for the next object.
"$kubectl" -n kubevirt rollout status deployment/virt-operator --timeout="${limit}s" >/dev/null || diagnose
apply -f test/kubevirt/kubevirt.yaml
said=
while :; do
	now=$(progress) || now="the API server does not answer"
	[ "$now" = "$said" ] || say "$now"
	said=$now
	# The phase alone may be that of the time before a restart of the box.
	case "$now" in
	"phase Deployed") [ "$(condition Available | cut -d ' ' -f 1)" != True ] || break ;;
	esac
	[ $(($(date +%s) - start)) -lt "$limit" ] || diagnose
	sleep 2
done
