#!/bin/sh
# Removes Varve, its kinds and every object of these kinds from the cluster of $KUBECONFIG. Machines are stopped first,
# while the components can still clean up what they made, and data movement is cancelled. What is left after
# $UNINSTALL_TIMEOUT (120s) loses its finalizers: a warning names it, because something of it may be left on a node.
# Claims, and the backups on them, stay. So do restore points in repositories, VolumeSnapshots of machines, kinds that
# Varve did not install, such as those of KubeVirt, Velero and Harvester, and their objects. Kinds that Varve installed
# and Velero uses stay as well. Volumes of the store, and images that they are cloned from, stay on the disks of their
# nodes. The namespace varve stays with its Secrets if one of them is the password of repositories: nobody could read
# the backups without it.
set -eu
cd "$(dirname "$0")/.."
kubectl=${KUBECTL:-kubectl}
timeout=${UNINSTALL_TIMEOUT:-120s}
. deploy/owned-kinds.sh

. deploy/uninstall-velero.sh

read_owners
foreign=$(foreign_kinds $(kubevirt_kinds))
operators=$(kubevirt_operators)
veleros=$(foreign_kinds $(velero_kinds) $(harvester_kinds) $(longhorn_kinds))
velero=$(velero_signs)
[ -z "$foreign$veleros" ] || echo "uninstall: these kinds are not Varve's, and stay with all their objects:" $foreign $veleros >&2
ours() {
	[ "$(owner_of "$1")" = varve ]
}

delete_objects() {
	echo "uninstall: $1"
	if ! "$kubectl" delete "$1" --all --all-namespaces --timeout="$timeout"; then
		"$kubectl" get "$1" --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
			while read -r namespace name; do
				echo "uninstall: warning: $1 $namespace/$name did not end by itself: its finalizers are removed" >&2
				"$kubectl" -n "$namespace" patch "$1" "$name" --type merge -p '{"metadata":{"finalizers":null}}' || true
			done
		"$kubectl" delete "$1" --all --all-namespaces --timeout="$timeout"
	fi
}

# release_all takes all finalizers from the objects of a kind.
release_all() {
	"$kubectl" get "$1" --all-namespaces --no-headers -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
		while read -r namespace name; do
			"$kubectl" -n "$namespace" patch "$1" "$name" --type merge -p '{"metadata":{"finalizers":null}}' >/dev/null
		done
}

# delete_images deletes images, with their copies, unless volumes are cloned from them.
delete_images() {
	ours backingimages.longhorn.io || return 0
	echo "uninstall: backingimages.longhorn.io"
	"$kubectl" -n varve delete backingimages.longhorn.io --all --timeout="$timeout" ||
		echo "uninstall: warning: images that are left stay on the disks of their nodes" >&2
}

# keep_machine_snapshots takes the VolumeSnapshots of machines from their owners, with which they would go.
keep_machine_snapshots() {
	[ -n "$(owner_of volumesnapshots.snapshot.storage.k8s.io)" ] || return 0
	"$kubectl" get volumesnapshots.snapshot.storage.k8s.io --all-namespaces -l varvebackup.io/machine-snapshot-uid --no-headers \
		-o custom-columns=NS:.metadata.namespace,NAME:.metadata.name |
		while read -r namespace name; do
			"$kubectl" -n "$namespace" patch volumesnapshots.snapshot.storage.k8s.io "$name" --type merge \
				-p '{"metadata":{"ownerReferences":null}}' >/dev/null
		done
}

cancel_movement
# Running backups first, then what they use, then migrations and guests.
for kind in virtualmachinebackups.backup.kubevirt.io virtualmachinebackuptrackers.backup.kubevirt.io \
	virtualmachineinstancemigrations.kubevirt.io virtualmachines.kubevirt.io virtualmachineinstances.kubevirt.io; do
	! ours "$kind" || delete_objects "$kind"
done
# Launcher and attachment pods that nobody owns any more. KubeVirt's launchers have the same label as Varve's.
pods='kubevirt.io in (virt-launcher,varve-attachment)'
[ -z "$foreign$operators" ] || pods='kubevirt.io=varve-attachment'
"$kubectl" delete pods --all-namespaces -l "$pods" --ignore-not-found --timeout="$timeout"
if ours kubevirts.kubevirt.io; then
	"$kubectl" delete kubevirts.kubevirt.io --all --all-namespaces --timeout="$timeout"
fi
delete_images
# The controller has made it. Without the stores nobody would answer there.
if ours backingimages.longhorn.io && [ -n "$(owner_of snapshotmetadataservices.cbt.storage.k8s.io)" ]; then
	"$kubectl" delete snapshotmetadataservices.cbt.storage.k8s.io store.varvebackup.io --ignore-not-found
fi
stop_movers
for kind in backingimages.longhorn.io backupbackingimages.longhorn.io; do
	! ours "$kind" || release_all "$kind" # The namespace would wait for them, and restore points stay.
done
read_owners # That took its time, and somebody may have installed something since.
delete_kept_snapshots
keep_machine_snapshots
release_objects
# Without the controllers, the deletion of a snapshot deletes none of the storage's.
for kind in virtualmachinesnapshots.snapshot.kubevirt.io virtualmachinesnapshotcontents.snapshot.kubevirt.io; do
	if ours "$kind"; then
		release_all "$kind"
		delete_objects "$kind"
	fi
done
# Without the controllers, the deletion of a backup deletes no restore points.
for kind in $(varve_kinds) $(harvester_kinds); do
	if ours "$kind"; then
		release_all "$kind"
		delete_objects "$kind"
	fi
done
for kind in $(velero_kinds); do
	if [ -z "$velero" ] && ours "$kind"; then
		delete_objects "$kind"
	fi
done
echo "uninstall: components and kinds"
# What cannot be read is an error, and not the absence of passwords.
passwords=$("$kubectl" -n varve get secrets --no-headers -o custom-columns=NAME:.metadata.name)
passwords=$(echo "$passwords" | grep '^repository-password-' || true)
# Nothing here but the namespace has anything to end: it is waited for, and not each of the others.
{
	"$kubectl" kustomize deploy
	if ours backingimages.longhorn.io; then
		echo ---
		"$kubectl" kustomize deploy/store
		if [ -n "$(owner_of volumesnapshotclasses.snapshot.storage.k8s.io)" ]; then
			echo ---
			cat deploy/store/snapshotclass.yaml
		fi
	fi
} | awk -v keep="$(echo $passwords)" '
	function flush() { if (!stays) printf "%s", text; text = ""; stays = 0 }
	/^---$/ { flush() }
	/^kind: CustomResourceDefinition$/ { stays = 1 }
	/^kind: Namespace$/ { stays = keep != "" }
	{ text = text $0 "\n" }
	END { flush() }
' | "$kubectl" delete -f - --ignore-not-found --wait=false
# Not the same deadline: nothing there has a finalizer of Varve, and a busy API server takes its time.
[ -n "$passwords" ] || "$kubectl" wait namespace/varve --for=delete --timeout=300s
read_owners
stay= gone=
for kind in $(kubevirt_kinds) $(velero_kinds) $(harvester_kinds) $(longhorn_kinds) $(varve_kinds); do
	ours "$kind" || continue
	case "$kind" in
	*.velero.io)
		if [ -n "$velero" ]; then
			stay="$stay $kind"
			continue
		fi
		;;
	esac
	gone="$gone $kind"
done
[ -z "$gone" ] || "$kubectl" delete crd $gone --timeout=300s
[ -z "$stay" ] || echo "uninstall: Varve installed these kinds, but Velero uses them: they stay with all their objects:$stay" >&2
if [ -n "$passwords" ]; then
	echo "uninstall: the namespace varve stays: it has the passwords of repositories, without which nobody can read the backups in them:" $passwords >&2
	echo "uninstall: keep a copy elsewhere (kubectl -n varve get secret NAME -o yaml); then: kubectl delete namespace varve" >&2
fi
