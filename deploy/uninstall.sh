#!/bin/sh
# Removes Varve, its kinds and every object of these kinds from the cluster of $KUBECONFIG. Machines are stopped first, while the
# components can still clean up what they made. What is left after $UNINSTALL_TIMEOUT (120s) loses its finalizers: a
# warning names it, because something of it may be left on a node. Claims, and the backups on them, stay. So do kinds that Varve did not
# install, such as KubeVirt's, and their objects.
set -eu
cd "$(dirname "$0")/.."
kubectl=${KUBECTL:-kubectl}
timeout=${UNINSTALL_TIMEOUT:-120s}
. deploy/owned-kinds.sh

foreign=$(foreign_kinds)
operators=$(kubevirt_operators)
[ -z "$foreign" ] || echo "uninstall: these kinds are not Varve's, and stay with all their objects:" $foreign >&2
ours() {
	owner=$(owner_of "$1") || exit 1
	[ "$owner" = varve ]
}

# Running backups first, then what they use, then guests.
for kind in virtualmachinebackups.backup.kubevirt.io virtualmachinebackuptrackers.backup.kubevirt.io \
	virtualmachines.kubevirt.io virtualmachineinstances.kubevirt.io; do
	ours "$kind" || continue
	echo "uninstall: $kind"
	if ! "$kubectl" delete "$kind" --all --all-namespaces --timeout="$timeout"; then
		"$kubectl" get "$kind" --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
			while read -r namespace name; do
				echo "uninstall: warning: $kind $namespace/$name did not end by itself: its finalizers are removed" >&2
				"$kubectl" -n "$namespace" patch "$kind" "$name" --type merge -p '{"metadata":{"finalizers":null}}' || true
			done
		"$kubectl" delete "$kind" --all --all-namespaces --timeout="$timeout"
	fi
done
# Launcher and attachment pods that nobody owns any more. KubeVirt's launchers have the same label as Varve's.
pods='kubevirt.io in (virt-launcher,varve-attachment)'
[ -z "$foreign$operators" ] || pods='kubevirt.io=varve-attachment'
"$kubectl" delete pods --all-namespaces -l "$pods" --ignore-not-found --timeout="$timeout"
if ours kubevirts.kubevirt.io; then
	"$kubectl" delete kubevirts.kubevirt.io --all --all-namespaces --timeout="$timeout"
fi
echo "uninstall: components and kinds"
# Not the same deadline: nothing here has a finalizer of Varve, and a busy API server takes its time.
"$kubectl" kustomize deploy | awk '
	function flush() { if (!crd) printf "%s", text; text = ""; crd = 0 }
	/^---$/ { flush() }
	/^kind: CustomResourceDefinition$/ { crd = 1 }
	{ text = text $0 "\n" }
	END { flush() }
' | "$kubectl" delete -f - --ignore-not-found --timeout=300s
for kind in $(kinds); do
	if ours "$kind"; then
		"$kubectl" delete crd "$kind" --timeout=300s
	fi
done
