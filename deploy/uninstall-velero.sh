# What uninstall.sh does for objects of Velero's kinds, whoever installed them. To be sourced, with $kubectl, $timeout and owned-kinds.sh.

# These finalizers are Varve's: on objects that it has taken, and on deletions of backups that it takes part in.
move_finalizer=varvebackup.io/data-mover
deletion_finalizer=velero.io/dm-delete-backup

# objects_of lists the objects of a kind as kind|namespace|name|phase|version|finalizers, and none if there is no such kind.
objects_of() {
	[ -n "$(owner_of "$1")" ] || return 0
	"$kubectl" get "$1" --all-namespaces -o \
		"jsonpath={range .items[*]}$1|{.metadata.namespace}|{.metadata.name}|{.status.phase}|{.metadata.resourceVersion}|{.metadata.finalizers}{\"\\n\"}{end}"
}

# moving lists the objects that Varve has taken and that have not ended.
moving() {
	uploads=$(objects_of datauploads.velero.io) || return 1
	downloads=$(objects_of datadownloads.velero.io) || return 1
	printf '%s\n' "$uploads" "$downloads" |
		awk -F'|' -v finalizer="\"$move_finalizer\"" 'index($6, finalizer) && $4 !~ /^(Completed|Failed|Canceled)$/'
}

# cancel_movement ends data movement while the components can still clean up what they made for it.
cancel_movement() {
	taken=$(moving)
	[ -n "$taken" ] || return 0
	echo "uninstall: cancels data movement"
	echo "$taken" | while IFS='|' read -r kind namespace name _; do
		"$kubectl" -n "$namespace" patch "$kind" "$name" --type merge -p '{"spec":{"cancel":true}}' >/dev/null
	done
	patience=$timeout
	echo "$taken" | while IFS='|' read -r kind namespace name _; do
		if ! "$kubectl" -n "$namespace" wait "$kind/$name" --for='jsonpath={.status.completionTimestamp}' --timeout="$patience" >/dev/null; then
			echo "uninstall: warning: $kind $namespace/$name did not end by itself: a snapshot or a volume of it may be left" >&2
			patience=0s # The others had as much time.
		fi
	done
}

# stop_movers ends the components, and waits for it: to them the deletion of a DataUpload is that of its restore point.
stop_movers() {
	"$kubectl" -n varve delete deployment/varve-controller daemonset/varve-handler --ignore-not-found --timeout="$timeout"
	"$kubectl" -n varve wait pods -l 'app.kubernetes.io/name=varve,app.kubernetes.io/component in (controller,handler)' \
		--for=delete --timeout="$timeout"
}

# delete_kept_snapshots deletes the snapshots that were kept for the next upload of their claims. Nobody else would, if the namespace varve stays.
delete_kept_snapshots() {
	[ -n "$(owner_of volumesnapshots.snapshot.storage.k8s.io)" ] || return 0
	"$kubectl" -n varve delete volumesnapshots.snapshot.storage.k8s.io -l varvebackup.io/kept-snapshot --ignore-not-found --timeout="$timeout" ||
		echo "uninstall: warning: kept snapshots in namespace varve are not deleted yet: their CSI driver has to do it" >&2
}

# release_objects removes Varve's finalizers, so that Velero can delete its objects without Varve.
release_objects() {
	for kind in datauploads.velero.io datadownloads.velero.io deletebackuprequests.velero.io; do
		all=$(objects_of "$kind")
		[ -n "$all" ] || continue
		echo "$all" | while IFS='|' read -r kind namespace name _ version finalizers; do
			kept=$(echo "$finalizers" | sed "s|\"$move_finalizer\"||; s|\"$deletion_finalizer\"||; s|,,*|,|g; s|\[,|[|; s|,\]|]|")
			[ "$kept" != "$finalizers" ] || continue
			"$kubectl" -n "$namespace" patch "$kind" "$name" --type merge \
				-p "{\"metadata\":{\"resourceVersion\":\"$version\",\"finalizers\":$kept}}" >/dev/null
		done
	done
}
