#!/bin/sh
# Removes Varve, its kinds and every object of these kinds from the cluster of $KUBECONFIG. Machines are stopped first, while the
# components can still clean up what they made. What is left after $UNINSTALL_TIMEOUT (120s) loses its finalizers: a
# warning names it, because something of it may be left on a node. Claims, and the backups on them, stay.
set -eu
cd "$(dirname "$0")/.."
kubectl=${KUBECTL:-kubectl}
timeout=${UNINSTALL_TIMEOUT:-120s}

# Running backups first, then what they use, then guests.
for kind in virtualmachinebackups.backup.kubevirt.io virtualmachinebackuptrackers.backup.kubevirt.io \
	virtualmachines.kubevirt.io virtualmachineinstances.kubevirt.io; do
	"$kubectl" get crd "$kind" >/dev/null 2>&1 || continue
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
# Launcher and attachment pods that nobody owns any more.
"$kubectl" delete pods --all-namespaces -l 'kubevirt.io in (virt-launcher,varve-attachment)' --ignore-not-found --timeout="$timeout"
if "$kubectl" get crd kubevirts.kubevirt.io >/dev/null 2>&1; then
	"$kubectl" delete kubevirts.kubevirt.io --all --all-namespaces --timeout="$timeout"
fi
echo "uninstall: components and kinds"
# Not the same deadline: nothing here has a finalizer of Varve, and a busy API server takes its time.
"$kubectl" delete -k deploy --ignore-not-found --timeout=300s
