package keptsnapshot

import (
	"cmp"
	"slices"
	"time"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// mostInUse is how many snapshots of a claim and repository stay that only a running upload keeps. It counts from the one that was the latest when
// it began. Without a limit, an upload that never ends, or uploads that overlap, would keep each snapshot for good.
const mostInUse = 3

// candidate is a snapshot that was kept, and what there is of what it is kept for.
type candidate struct {
	kept datamove.KeptSnapshot
	// made is when its VolumeSnapshot was made, by the API server's clock.
	made time.Time
	// unknown: the API server did not say what there is of what it is kept for. It stays, and says nothing about others.
	unknown bool
	// unreadable: nobody knows what it is kept for.
	unreadable bool
	// uploadGone: its DataUpload does not exist, or is being deleted. Otherwise phase and completed are the DataUpload's.
	uploadGone bool
	phase      velerov2.Phase
	completed  time.Time
	// claimGone, settingOff and serviceGone: the claim, the setting, and the driver's service are not there any more.
	claimGone, settingOff, serviceGone bool
	// inUse: another upload of the claim runs.
	inUse bool
}

// decide says of each snapshot why it goes; "": it stays.
func decide(all []candidate) []string {
	latest := map[string]*candidate{}
	out := make([]string, len(all))
	for i := range all {
		c := &all[i]
		if c.unknown {
			continue
		}
		out[i] = c.whyUseless()
		if out[i] != "" || c.phase != velerov2.PhaseCompleted {
			continue
		}
		key := c.kept.Key()
		if before := latest[key]; before == nil || c.isAfter(before) {
			latest[key] = c
		}
	}
	for i := range all {
		c := &all[i]
		if newest := latest[c.kept.Key()]; out[i] == "" && !c.unknown && c.phase == velerov2.PhaseCompleted && newest != c {
			out[i] = "DataUpload " + newest.kept.Upload.String() + " has stored a later one"
		}
	}
	spareInUse(all, out)
	return out
}

// spareInUse takes back why snapshots go that a running upload may count from: the ones that were made last.
func spareInUse(all []candidate, why []string) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return all[j].compareMaking(&all[i]) })
	spared := map[string]int{}
	for _, i := range order {
		key := all[i].kept.Key()
		if why[i] != "" && all[i].inUse && spared[key] < mostInUse {
			spared[key]++
			why[i] = ""
		}
	}
}

// whyUseless says why nobody can use a snapshot, or "". An upload that has not ended is driven, and may still have it
// deleted.
func (c *candidate) whyUseless() string {
	switch {
	case c.unreadable:
		return "nothing says what it is kept for"
	case c.uploadGone:
		return "its DataUpload " + c.kept.Upload.String() + " was deleted"
	case !c.phase.Ended():
		return ""
	case c.phase != velerov2.PhaseCompleted:
		return "its DataUpload " + c.kept.Upload.String() + " ended as " + string(c.phase)
	case c.claimGone:
		return "its claim " + c.kept.Claim.String() + " was deleted"
	case c.settingOff:
		return "the settings no longer keep snapshots of StorageClass " + c.kept.StorageClass
	case c.serviceGone:
		return "the CSI driver " + c.kept.Driver + " announces no SnapshotMetadata service any more"
	}
	return ""
}

// isAfter says that c's upload completed later. Times have seconds only.
func (c *candidate) isAfter(o *candidate) bool {
	return cmp.Or(c.completed.Compare(o.completed), cmp.Compare(c.kept.UploadUID, o.kept.UploadUID)) > 0
}

func (c *candidate) compareMaking(o *candidate) int {
	return cmp.Or(c.made.Compare(o.made), cmp.Compare(c.kept.UploadUID, o.kept.UploadUID))
}
