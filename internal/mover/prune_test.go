package mover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// With PerDisk, a restore point stays if it is the only one that has some disk. Damage counts only for the damaged
// disk.
func TestPrunePolicy_decidesOnPointsOrDisks(t *testing.T) {
	t.Parallel()
	history := points("1111", "2222", "3333")
	for i, names := range [][]string{{"root", "old"}, {"root"}, {"root"}} {
		for _, name := range names {
			history[i].Disks = append(history[i].Disks, repository.Disk{Name: name})
		}
	}
	damaged := map[string]map[string]bool{"3333": {"root": true}}
	for name, c := range map[string]struct {
		policy PrunePolicy
		want   []string
	}{
		"whole":    {PrunePolicy{}, []string{"not good, but no newer one is good", "last good one, last 1", ""}},
		"per disk": {PrunePolicy{PerDisk: true}, []string{"root: not good, but no newer one is good", "root: last good one + last 1", "old: last good one + last 1"}},
	} {
		c.policy.Policy = retention.Policy{Last: 1, RemoveDamaged: true}
		decisions, err := c.policy.decideHistory(time.Unix(100, 0), history, damaged)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, d := range decisions {
			got = append(got, strings.Join(d.Reasons, ", "))
			if d.Keep != (len(d.Reasons) > 0) || d.Damaged != (d.Point.ID == "3333") {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Files count like one disk: deciding disk by disk must not take a restore point without disks for one that nothing keeps.
func TestPrunePolicy_decidesOnFilesLikeOnADisk(t *testing.T) {
	t.Parallel()
	for _, perDisk := range []bool{false, true} {
		history := points("1111", "2222", "3333")
		for _, p := range history {
			p.Files = &repository.Files{}
		}
		damaged := map[string]map[string]bool{"3333": {repository.FilesName: true}}
		policy := PrunePolicy{Policy: retention.Policy{Last: 1, RemoveDamaged: true}, PerDisk: perDisk}
		decisions, err := policy.decideHistory(time.Unix(100, 0), history, damaged)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, d := range decisions {
			if d.Keep {
				kept = append(kept, d.Point.ID)
			}
		}
		if diff := cmp.Diff([]string{"3333", "2222"}, kept); diff != "" {
			t.Errorf("disk by disk %t: %s", perDisk, diff)
		}
	}
}

// Neither way removes the restore point that was made last, even if a clock that was behind gave it an old time.
func TestPrunePolicy_keepsWhatWasMadeLast(t *testing.T) {
	t.Parallel()
	history := points("1111", "2222", "3333")
	for _, p := range history {
		p.Disks = []repository.Disk{{Name: "root"}}
	}
	history[0].After = history[2].Time
	for _, perDisk := range []bool{false, true} {
		policy := PrunePolicy{Policy: retention.Policy{Last: 1}, PerDisk: perDisk}
		decisions, err := policy.decideHistory(time.Unix(100, 0), history, nil)
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]bool{}
		for _, d := range decisions {
			kept[d.Point.ID] = d.Keep
		}
		if diff := cmp.Diff(map[string]bool{"1111": true, "2222": false, "3333": true}, kept); diff != "" {
			t.Errorf("per disk %t: %s", perDisk, diff)
		}
	}
}

func TestPruneSurvey_decidesOnSelectedHistoriesAlone(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	q := BackupRequest{Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<16))}}}
	made := map[string][]string{}
	for range 2 {
		for _, name := range []string{"web", "db"} {
			q.History = r.Source("", "", HistoryPath(name))
			p, err := Backup(t.Context(), r, q)
			if err != nil {
				t.Fatal(err)
			}
			made[name] = append(made[name], p.ID)
		}
	}
	survey, err := SurveyPrune(t.Context(), r, HistoryFilter{Names: []string{"web"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Add(time.Minute)
	decisions, err := survey.Decide(PrunePolicy{Policy: retention.Policy{Last: 1}}, now)
	if err != nil || len(decisions) != 2 || decisions[0].Point.ID != made["web"][1] {
		t.Fatalf("%+v: %v", decisions, err)
	}
	if diff := cmp.Diff(made["web"][:1], RemovedIDs(decisions)); diff != "" {
		t.Error(diff)
	}
	if _, err := survey.Decide(PrunePolicy{}, now); !errors.Is(err, retention.ErrEmpty) {
		t.Errorf("a policy without rules: %v", err)
	}
}

func TestVerify_reportsAndEndsWhenItIsCancelled(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	if _, err := Backup(t.Context(), r, BackupRequest{History: r.Source("", "", "/web"), Sources: []Source{{Name: "root", Location: writeFile(t, noise(1, 1<<20))}}}); err != nil {
		t.Fatal(err)
	}
	seen := map[Phase]bool{}
	q := VerifyRequest{Percent: 100, Progress: func(p Progress) { seen[p.Phase] = true }}
	report, err := Verify(t.Context(), r, q)
	if err != nil || report.Damaged() || report.Contents == 0 || !seen[PhaseChecking] {
		t.Errorf("%+v, phases %v: %v", report, seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	q.Progress = func(Progress) { cancel() }
	if _, err := Verify(ctx, r, q); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
