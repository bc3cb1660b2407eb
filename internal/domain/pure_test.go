package domain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/internal/errclass"
)

var threeDisks = diskMap{
	{Volume: "root", Target: "vda", Tracked: true, Node: 1},
	{Volume: "data", Target: "vdb", Tracked: true, Node: 3},
	{Volume: "plain", Target: "sda", Node: 5},
}

func TestBackup_documentsListEveryDisk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		b := Backup{Checkpoint: rapid.SampledFrom([]string{"", "c1"}).Draw(r, "checkpoint")}
		wanted := map[string]BackupDisk{}
		for _, volume := range []string{"root", "data"} {
			if rapid.Bool().Draw(r, volume) {
				d := BackupDisk{Volume: volume, Target: "/t/" + volume, Incremental: rapid.SampledFrom([]string{"", "c0"}).Draw(r, "base")}
				b.Disks = append(b.Disks, d)
				wanted[volume] = d
			}
		}
		job, checkpoint, err := backupXML(b, threeDisks)
		if err != nil {
			r.Fatal(err)
		}
		var doc libvirtxml.DomainBackup
		if err := doc.Unmarshal(job); err != nil {
			r.Fatal(err)
		}
		if len(doc.Push.Disks.Disks) != len(threeDisks) {
			r.Fatalf("the job lists %d disks", len(doc.Push.Disks.Disks))
		}
		for i, got := range doc.Push.Disks.Disks {
			want, in := wanted[threeDisks[i].Volume]
			if got.Name != threeDisks[i].Target || (got.Backup == "yes") != in || got.Incremental != want.Incremental {
				r.Fatalf("disk %+v, want %+v", got, want)
			}
			if in && (got.Target.File.File != want.Target || (got.BackupMode == "incremental") != (want.Incremental != "")) {
				r.Fatalf("disk %+v, want %+v", got, want)
			}
		}
		if b.Checkpoint == "" {
			if checkpoint != "" {
				r.Fatal("a checkpoint that nobody asked for")
			}
			return
		}
		var cp libvirtxml.DomainCheckpoint
		if err := cp.Unmarshal(checkpoint); err != nil {
			r.Fatal(err)
		}
		if cp.Name != "c1" || cp.CreationTime != "" || len(cp.Disks.Disks) != len(threeDisks) {
			r.Fatalf("checkpoint %+v", cp)
		}
		for i, got := range cp.Disks.Disks {
			if _, in := wanted[threeDisks[i].Volume]; (got.Checkpoint == "bitmap") != in {
				r.Fatalf("disk %+v in the checkpoint", got)
			}
		}
	})
}

func TestBackup_refusesDisks(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]Backup{
		"unknown":                     {Disks: []BackupDisk{{Volume: "other"}}},
		"untracked with a checkpoint": {Checkpoint: "c1", Disks: []BackupDisk{{Volume: "plain"}}},
		"untracked incremental":       {Disks: []BackupDisk{{Volume: "plain", Incremental: "c0"}}},
	} {
		if _, _, err := backupXML(b, threeDisks); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

const blockNodes = `{"return":[
 {"node-name":"libvirt-1-format","drv":"qcow2","dirty-bitmaps":[
  {"name":"good","recording":true,"persistent":true,"busy":false,"granularity":65536,"count":131072},
  {"name":"broken","recording":false,"inconsistent":true,"persistent":true,"busy":false,"granularity":65536,"count":0},
  {"name":"stopped","recording":false,"persistent":true,"busy":false,"granularity":65536,"count":5}]},
 {"node-name":"libvirt-1-storage","drv":"file"},
 {"node-name":"libvirt-2-storage","drv":"file","dirty-bitmaps":[{"name":"foreign","recording":true,"count":1}]},
 {"node-name":"libvirt-3-format","drv":"qcow2"}]}`

func TestBitmaps_areAssessedPerDisk(t *testing.T) {
	t.Parallel()
	bitmaps, err := parseBitmaps(blockNodes, threeDisks)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]struct {
		valid []string
		lost  []string
	}{
		"good":    {[]string{"root"}, []string{"data", "gone", "plain"}},
		"broken":  {nil, []string{"data", "gone", "plain", "root"}},
		"stopped": {nil, []string{"data", "gone", "plain", "root"}},
		"foreign": {nil, []string{"data", "gone", "plain", "root"}},
	} {
		valid, lost := splitByDefect(Checkpoint{Name: name, Volumes: []string{"root", "data", "plain", "gone"}}, threeDisks, bitmaps)
		if diff := cmp.Diff(want.valid, valid); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		for _, volume := range want.lost {
			if lost[volume] == "" {
				t.Errorf("%s: no reason why %s is lost", name, volume)
			}
		}
		if len(lost) != len(want.lost) {
			t.Errorf("%s: lost %v", name, lost)
		}
	}
	dirty, err := dirtyBytes(bitmaps, "good")
	if diff := cmp.Diff(map[string]uint64{"root": 131072}, dirty); diff != "" || err != nil {
		t.Errorf("%v, %s", err, diff)
	}
	// The count of a disk stays although another disk has lost its bitmap.
	partial := bitmapsByVolume{"root": {"c": {Name: "c", Recording: true, Count: 65536}}, "data": {"c": {Name: "c", Inconsistent: true}}}
	dirty, err = dirtyBytes(partial, "c")
	if diff := cmp.Diff(map[string]uint64{"root": 65536}, dirty); diff != "" || !errors.Is(err, ErrCheckpointLost) {
		t.Errorf("%v, %s", err, diff)
	}
	for _, name := range []string{"broken", "stopped", "foreign", ""} {
		if _, err := dirtyBytes(bitmaps, name); !errors.Is(err, ErrCheckpointLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBitmaps_missingBlockNodeIsAnError(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{`{"return":[]}`, `nonsense`} {
		if _, err := parseBitmaps(answer, threeDisks); err == nil {
			t.Errorf("%s: no error", answer)
		}
	}
}

func TestDisks_areReadFromTheLiveDocument(t *testing.T) {
	t.Parallel()
	var doc libvirtxml.Domain
	err := doc.Unmarshal(`<domain><devices>
	<disk type='file' device='disk'><source file='/o' index='1'><dataStore type='file'><format type='raw'/><source file='/r' index='2'/></dataStore></source><target dev='vda'/><alias name='ua-root'/></disk>
	<disk type='block' device='disk'><source dev='/d' index='5'/><target dev='sda'/><alias name='sata0-0-0'/></disk>
	</devices></domain>`)
	if err != nil {
		t.Fatal(err)
	}
	want := diskMap{{Volume: "root", Target: "vda", Tracked: true, Node: 1}, {Volume: "sda", Target: "sda", Node: 5}}
	if diff := cmp.Diff(want, mapDisks(&doc)); diff != "" {
		t.Error(diff)
	}
}

func TestMergeInterfaces(t *testing.T) {
	t.Parallel()
	domain := []Interface{{Name: "default", MAC: "02:00:00:00:00:01"}, {Name: "other", MAC: "02:00:00:00:00:02"}}
	guest := []Interface{
		{GuestName: "docker0", MAC: "02:00:00:00:00:09", IPs: []string{"172.17.0.1"}, FromAgent: true},
		{GuestName: "eth0", MAC: "02:00:00:00:00:01", IPs: []string{"10.0.2.15", "fe80::1"}, FromAgent: true},
	}
	want := []Interface{
		{Name: "default", MAC: "02:00:00:00:00:01", GuestName: "eth0", IPs: []string{"10.0.2.15", "fe80::1"}, FromAgent: true},
		{Name: "other", MAC: "02:00:00:00:00:02"},
		guest[0],
	}
	if diff := cmp.Diff(want, mergeInterfaces(domain, guest)); diff != "" {
		t.Error(diff)
	}
	if domain[0].FromAgent {
		t.Error("the input was changed")
	}
}

func TestTarget_noSpaceIsRecognized(t *testing.T) {
	t.Parallel()
	for _, err := range []error{unix.ENOSPC, fmt.Errorf("write: %w", unix.EDQUOT), errors.New("backup job: No space left on device")} {
		if !errors.Is(classifyWrite(err), errclass.Exhausted) || !errors.Is(classifyWrite(err), err) {
			t.Errorf("%v became %v", err, classifyWrite(err))
		}
	}
	if err := errors.New("Input/output error"); errors.Is(classifyWrite(err), errclass.Exhausted) {
		t.Error(err)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	id, run := Identity{ClaimUID: "a", ContentGeneration: "1", VirtualBytes: 512}, Run{ID: "r2", Previous: "r1"}
	raw, qcow2, content := stamp{512, 7, 100}, stamp{9000, 8, 200}, fingerprint{"r1", "abc"}
	clean := &cleanRecord{Raw: raw, Overlay: qcow2, Content: content}
	rec := func(id Identity, run string, clean *cleanRecord) *record {
		return &record{Identity: id, Run: run, Clean: clean}
	}
	for name, c := range map[string]struct {
		seen sight
		run  Run
		want Renewed
	}{
		"all as it was":            {sight{true, rec(id, "r1", clean), raw, qcow2, content}, run, Kept},
		"again in the same run":    {sight{true, rec(id, "r2", clean), raw, qcow2, content}, run, Kept},
		"no overlay":               {sight{false, rec(id, "r1", clean), raw, qcow2, content}, run, NewOverlay},
		"no record":                {sight{true, nil, raw, qcow2, content}, run, NewOverlay},
		"other claim":              {sight{true, rec(Identity{"b", "1", 512}, "r1", clean), raw, qcow2, content}, run, DiskReplaced},
		"other content":            {sight{true, rec(Identity{"a", "2", 512}, "r1", clean), raw, qcow2, content}, run, DiskReplaced},
		"other size":               {sight{true, rec(Identity{"a", "1", 1024}, "r1", clean), raw, qcow2, content}, run, DiskReplaced},
		"a run between":            {sight{true, rec(id, "r0", clean), raw, qcow2, content}, run, UsedElsewhere},
		"last run unknown":         {sight{true, rec(id, "", clean), raw, qcow2, content}, run, UsedElsewhere},
		"this run unknown":         {sight{true, rec(id, "r1", clean), raw, qcow2, content}, Run{"", "r1"}, UsedElsewhere},
		"nothing known":            {sight{true, rec(id, "", clean), raw, qcow2, content}, Run{}, UsedElsewhere},
		"the first run":            {sight{true, rec(id, "", clean), raw, qcow2, content}, Run{"r2", ""}, UsedElsewhere},
		"a run between, not clean": {sight{true, rec(id, "r0", nil), raw, qcow2, content}, run, UsedElsewhere},
		"not clean":                {sight{true, rec(id, "r1", nil), raw, qcow2, content}, run, NotClean},
		"raw: time":                {sight{true, rec(id, "r1", clean), stamp{512, 7, 101}, qcow2, content}, run, WrittenWithoutOverlay},
		"raw: file":                {sight{true, rec(id, "r1", clean), stamp{512, 9, 100}, qcow2, content}, run, WrittenWithoutOverlay},
		"raw: content":             {sight{true, rec(id, "r1", clean), raw, qcow2, fingerprint{"r1", "abd"}}, run, WrittenWithoutOverlay},
		"raw: cannot be read":      {sight{true, rec(id, "r1", clean), raw, qcow2, fingerprint{}}, run, WrittenWithoutOverlay},
		"overlay: time":            {sight{true, rec(id, "r1", clean), raw, stamp{9000, 8, 199}, content}, run, WrittenWithoutOverlay},
		"overlay: size":            {sight{true, rec(id, "r1", clean), raw, stamp{9001, 8, 200}, content}, run, WrittenWithoutOverlay},
		"replaced, not clean":      {sight{true, rec(Identity{"b", "1", 512}, "r1", nil), raw, qcow2, content}, run, DiskReplaced},
		"not clean and foreign":    {sight{true, rec(id, "r1", nil), stamp{1, 1, 1}, qcow2, content}, run, NotClean},
	} {
		if got := renewalReason(c.seen, id, c.run); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestStamp_tellsVersionsOfAFileApart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.img")
	at := time.Unix(1000, 1)
	write := func(size int) stamp {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, make([]byte, size), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
		s, err := stampOf(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := write(1024)
	if again := write(1024); again != first {
		t.Errorf("nothing changed: %+v and %+v", first, again)
	}
	if grown := write(2048); grown == first {
		t.Error("another size has the same stamp")
	}
	at = at.Add(time.Nanosecond)
	if later := write(1024); later == first {
		t.Error("another time has the same stamp")
	}
	at = time.Unix(1000, 1)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if replaced := write(1024); replaced == first {
		t.Error("another file has the same stamp")
	}
}

func TestRecord_ofAnotherVersionIsUnreadable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "root.json")
	if err := writeRecord(path, &record{Identity: Identity{ClaimUID: "a", ContentGeneration: "1", VirtualBytes: 512}}); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecord(path); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{`{"version":1,"identity":{"claimUID":"a"}}`, `{}`, `{"version":`, ``} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readRecord(path); !errors.Is(err, errBadRecord) {
			t.Errorf("%q: %v", content, err)
		}
	}
}

func TestQueue_neverBlocksAndSaysWhatItDropped(t *testing.T) {
	t.Parallel()
	q := newQueue(4, func(Event) {})
	for range 1000 {
		q.push(Event{Kind: EventAgent})
	}
	q.push(Event{Kind: EventConnectionClosed})
	var got []EventKind
	for e := range q.out {
		got = append(got, e.Kind)
		if e.Kind == EventConnectionClosed {
			break
		}
	}
	// At most one event more than the limit was taken before the reader came.
	resync := -1
	for i, kind := range got {
		if kind == EventResync {
			resync = i
		}
	}
	if resync < 0 || len(got) > 6 {
		t.Errorf("got %v", got)
	}
	q.close()
	q.close()
	if _, open := <-q.out; open {
		t.Error("an event after close")
	}
}

func TestQueue_keepsTheOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	before := 0
	q := newQueue(queueLimit, func(Event) { mu.Lock(); before++; mu.Unlock() })
	for i := range queueLimit {
		q.push(Event{Kind: EventThreshold, Message: fmt.Sprint(i)})
	}
	for i := range queueLimit {
		select {
		case e := <-q.out:
			if e.Message != fmt.Sprint(i) {
				t.Fatalf("event %d is %s", i, e.Message)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no event")
		}
	}
	q.close()
	mu.Lock()
	defer mu.Unlock()
	if before != queueLimit {
		t.Errorf("before was called %d times", before)
	}
}

// A pull backup differs in the element and in the exports.
func TestBackup_pullDocumentNamesExports(t *testing.T) {
	t.Parallel()
	b := Backup{Socket: "/s/nbd.sock", Disks: []BackupDisk{{Volume: "root", Target: "/t/root"}, {Volume: "data", Target: "/t/data", Incremental: "c0"}}}
	job, _, err := backupXML(b, threeDisks)
	if err != nil {
		t.Fatal(err)
	}
	var doc libvirtxml.DomainBackup
	if err := doc.Unmarshal(job); err != nil {
		t.Fatal(err)
	}
	if doc.Push != nil || doc.Pull == nil || doc.Pull.Server.UNIX == nil || doc.Pull.Server.UNIX.Socket != "/s/nbd.sock" || len(doc.Pull.Disks.Disks) != len(threeDisks) {
		t.Fatal(job)
	}
	disks := doc.Pull.Disks.Disks
	if d := disks[0]; d.BackupMode != "full" || d.ExportName != "root" || d.ExportBitmap != "" || d.Scratch.File.File != "/t/root" {
		t.Errorf("%+v", d)
	}
	if d := disks[1]; d.BackupMode != "incremental" || d.Incremental != "c0" || d.ExportName != "data" || d.ExportBitmap != ChangesBitmap {
		t.Errorf("%+v", d)
	}
	if d := disks[2]; d.Backup != "no" {
		t.Errorf("%+v", d)
	}
}
