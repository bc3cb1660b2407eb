package main

import "slices"

// The IDs of the rows, by the part that measures them.
var (
	fullIDs     = idsOf(fullRows)
	readIDs     = []string{"repo-restore-qemuimg", "repo-restore-kopia", "repo-verify"}
	changeIDs   = []string{"repo-unchanged-kopia", "repo-untouched-kopia", "repo-reread-kopia", "repo-1pct-kopia", "repo-1pct64k-kopia", "repo-amplification", "repo-amplification-worst"}
	tebibyteIDs = []string{"repo-1tib-seconds", "repo-1tib-mib", "repo-1tib-runs-seconds"}

	rowIDs = slices.Concat(fullIDs, readIDs, changeIDs, tebibyteIDs)
)

func idsOf(rows []fullRow) []string {
	var ids []string
	for _, r := range rows {
		ids = append(ids, r.id)
	}
	return ids
}
