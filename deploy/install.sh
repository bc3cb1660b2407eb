#!/bin/sh
# Installs Varve into the cluster of $KUBECONFIG, or brings an installation up to date, and waits until it runs.
# Usage: deploy/install.sh KUSTOMIZATION_DIR [OBJECTS...]
# Where KubeVirt runs the machines, the profile of deploy/beside is installed.
# OBJECTS are applied last, but not beside KubeVirt: the cluster's configuration. $KUBECTL is the program;
# $INSTALL_TIMEOUT the deadline, 180s by default.
set -eu
cd "$(dirname "$0")/.."
rendered=${1:?usage: deploy/install.sh KUSTOMIZATION_DIR [OBJECTS...]}
store=$1/store
shift
kubectl=${KUBECTL:-kubectl}
timeout=${INSTALL_TIMEOUT:-180s}
. deploy/owned-kinds.sh

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

# Varve brings kinds of KubeVirt's names and runs the machines itself. Applied over KubeVirt's, they would break every
# machine of the cluster: there, only the profile of deploy/beside is installed.
read_owners
foreign=$(foreign_kinds $(kubevirt_kinds))
operators=$(kubevirt_operators)
beside=
if [ -n "$foreign$operators" ]; then
	own=$(varve_runtime)
	if [ -n "$own" ]; then
		{
			echo "install: refused, and nothing was changed: this cluster has KubeVirt, and Varve with a runtime of its own:" $own
			echo "install: both serve kinds of the same names. Remove one of them: deploy/uninstall.sh removes Varve."
		} >&2
		exit 1
	fi
	if [ -z "$(owner_of virtualmachinebackups.backup.kubevirt.io)" ]; then
		{
			echo "install: refused, and nothing was changed: this cluster's KubeVirt has no kind virtualmachinebackups.backup.kubevirt.io: update it to 1.8 or later."
			echo "install: without it, use the varve program without the cluster (docs/quickstart-host.md): varve disk backs up disk images, devices and NBD exports."
		} >&2
		exit 1
	fi
	beside=yes rendered=$rendered/beside
	echo "install: this cluster has KubeVirt${operators:+ ($operators)}, which keeps its machines: Varve is installed beside it"
	echo "install: on: backups, schedules and restores of its machines, running or stopped, repositories, images"
	enabled=" "
	[ -z "$(owner_of kubevirts.kubevirt.io)" ] || enabled=$(kubevirt_gates)
	for need in "IncrementalBackup:incremental backups" "UtilityVolumes:backups of tracked machines" \
		"VMExport:backups of machines" "Snapshot:backups of type snapshot and of machines that are not tracked"; do
		case "$enabled" in
		*" ${need%%:*} "*) ;;
		*)
			echo "install: KubeVirt's feature gate ${need%%:*} is off, and ${need#*:} fail without it:" \
				"docs/kubevirt.md shows how to add it"
			;;
		esac
	done
	echo "install: off: Varve's own machines, and exports and snapshots of Varve's own"
elif [ -n "$(beside_installed)" ]; then
	{
		echo "install: refused, and nothing was changed: Varve was installed beside KubeVirt, and KubeVirt is not there any more."
		echo "install: to install Varve with its own runtime, run deploy/uninstall.sh first: backups in repositories stay"
	} >&2
	exit 1
fi
# Velero's kinds are those of the Velero that is there, in its version: Varve works with them, and adds only what is missing.
veleros=$(foreign_kinds $(velero_kinds))
harvesters=$(foreign_kinds $(harvester_kinds))
longhorns=$(foreign_kinds $(longhorn_kinds))
[ -z "$veleros" ] || echo "install: this cluster has Velero; these kinds of it stay as they are:" $veleros
[ -z "$harvesters" ] || echo "install: this cluster has Harvester, which backs whole machines up itself; these kinds of it stay as they are:" $harvesters
[ -z "$longhorns" ] || echo "install: this cluster has Longhorn; its kinds stay as they are, and Varve's store of images is not installed:" $longhorns
echo "install: kinds"
ours=
for file in deploy/crd/*.yaml; do
	kind=$(sed -n 's/^  name: //p' "$file")
	case " $(echo $veleros $harvesters $longhorns ${beside:+$(kubevirt_kinds)}) " in
	*" $kind "*) ;;
	*) ours="$ours -f $file" ;;
	esac
done
apply $ours
# Not the same deadline: this is the API server's work alone, and a busy one takes its time.
"$kubectl" wait --for=condition=Established --timeout=180s $ours >/dev/null
echo "install: components"
apply -k "$rendered"
[ -n "$longhorns" ] || apply -k "$store"
# Without the kinds of snapshots there is nothing to apply it to. Run this again when they are there.
[ -n "$longhorns" ] || [ -z "$(owner_of volumesnapshotclasses.snapshot.storage.k8s.io)" ] ||
	apply -f deploy/store/snapshotclass.yaml
if [ -z "$beside" ]; then
	for object in "$@"; do
		apply -f "$object"
	done
fi
# What earlier versions installed and this one has no more: their handlers drove data movements, with rights for that.
"$kubectl" -n varve delete role/varve-handler rolebinding/varve-handler lease/varve-data-mover \
	--ignore-not-found >/dev/null
for kind in validatingadmissionpolicybinding validatingadmissionpolicy; do
	"$kubectl" delete $kind varve-handler-data-movements varve-handler-pods --ignore-not-found >/dev/null
done
echo "install: waiting until they run"
"$kubectl" -n varve rollout status deployment/varve-controller --timeout="$timeout" || diagnose
if [ -z "$beside" ]; then
	"$kubectl" -n varve rollout status daemonset/varve-handler --timeout="$timeout" || diagnose
	"$kubectl" -n varve rollout status deployment/varve-exportproxy --timeout="$timeout" || diagnose
fi
[ -n "$longhorns" ] || "$kubectl" -n varve rollout status daemonset/varve-store --timeout="$timeout" || diagnose
"$kubectl" -n varve get pods -o wide
