# Tells Varve's kinds from KubeVirt's and Velero's, which have the same names. To be sourced, with $kubectl set, in the repository's root.

# kubevirt_kinds are the custom resource definitions that Varve installs in KubeVirt's groups. Varve takes KubeVirt's place.
kubevirt_kinds() {
	sed -n 's/^  name: \(.*\.kubevirt\.io\)$/\1/p' deploy/crd/*.yaml
}

# velero_kinds are those that it installs in Velero's group, where Velero has not. Varve works beside Velero.
velero_kinds() {
	sed -n 's/^  name: \(.*\.velero\.io\)$/\1/p' deploy/crd/*.yaml
}

# harvester_kinds are those that it installs in Harvester's group, where Harvester has not.
harvester_kinds() {
	sed -n 's/^  name: \(.*\.harvesterhci\.io\)$/\1/p' deploy/crd/*.yaml
}

# longhorn_kinds are those that it installs in Longhorn's group, with its store, if Longhorn is not there.
longhorn_kinds() {
	sed -n 's/^  name: \(.*\.longhorn\.io\)$/\1/p' deploy/crd/*.yaml
}

# varve_kinds are those of Varve's own group.
varve_kinds() {
	sed -n 's/^  name: \(.*\.varvebackup\.io\)$/\1/p' deploy/crd/*.yaml
}

# read_owners reads all custom resource definitions, for owner_of. What cannot be read is an error. One request for all of them, because
# a program that starts for each takes most of the time of an installation.
read_owners() {
	definitions=$("$kubectl" get crd --show-managed-fields \
		-o 'jsonpath={range .items[*]}{.metadata.name}{" part-of="}{.metadata.labels.app\.kubernetes\.io/part-of}{" by="}{.metadata.labels.app\.kubernetes\.io/managed-by}{" component="}{.metadata.labels.component}{" "}{range .metadata.managedFields[*]}{" manager="}{.manager}{" "}{end}{"\n"}{end}')
}

# owner_of says whose a custom resource definition was when read_owners looked: varve, other, or nothing if there was none.
# A label says it; versions of Varve without the label are known by the manager of their fields.
owner_of() {
	found=$(printf '%s\n' "$definitions" | awk -v name="$1" '$1 == name')
	case "$found" in
	'') ;;
	*' by=virt-operator '* | *' component=velero '*) echo other ;;
	*' part-of=varve '*) echo varve ;;
	*' manager=varve-install '*) echo varve ;;
	*) echo other ;;
	esac
}

# foreign_kinds are those of the given kinds that somebody else has installed.
foreign_kinds() {
	for kind in "$@"; do
		[ "$(owner_of "$kind")" != other ] || echo "$kind"
	done
}

# kubevirt_gates are the feature gates that KubeVirt's configuration names, each between spaces. KubeVirt after 1.8 has
# some on by itself.
kubevirt_gates() {
	gates=$("$kubectl" get kubevirts.kubevirt.io --all-namespaces \
		-o 'jsonpath={.items[*].spec.configuration.developerConfiguration.featureGates[*]}')
	case "$("$kubectl" get kubevirts.kubevirt.io --all-namespaces -o 'jsonpath={.items[*].status.observedKubeVirtVersion}')" in
	"" | v1.8.*) echo " $gates " ;;
	*) echo " $gates VMExport Snapshot " ;;
	esac
}

# kubevirt_operators are the operators of KubeVirt that are installed, as namespace/name.
kubevirt_operators() {
	"$kubectl" get deployments --all-namespaces -l kubevirt.io=virt-operator \
		-o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}'
}

# varve_runtime names the handlers of Varve's own runtime, or nothing.
varve_runtime() {
	"$kubectl" -n varve get daemonset varve-handler --ignore-not-found -o 'jsonpath={.kind}/{.metadata.name}'
}

# beside_installed names the controller of an installation beside KubeVirt, or nothing.
beside_installed() {
	"$kubectl" -n varve get deployment varve-controller --ignore-not-found \
		-o 'jsonpath={.spec.template.spec.containers[0].args}' |
		grep -o -e --beside-kubevirt || true
}

# velero_signs are what only a cluster with Velero has: its servers, as namespace/name, and the kind of its backups.
velero_signs() {
	"$kubectl" get deployments --all-namespaces --field-selector metadata.name=velero \
		-o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}' || return 1
	"$kubectl" get crd backups.velero.io --ignore-not-found -o 'jsonpath={.metadata.name}{"\n"}'
}
