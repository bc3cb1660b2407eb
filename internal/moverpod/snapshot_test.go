package moverpod

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubernetes-csi/external-snapshot-metadata/pkg/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/varvebackup/varve/internal/csichanges"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/snapshotmetadata"
)

// metadataToken is looked for in everything that a mover says.
const metadataToken = "token-for-the-sidecar"

// csiStorage plays a CSI driver with a volume and its snapshots. What it says about them comes from a stub of its SnapshotMetadata service.
type csiStorage struct {
	*site

	stub *snapshotmetadata.StubSnapshotMetadata
	// answer is in the place of the truth, if it is set.
	answer func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error

	mu      sync.Mutex
	content []byte
	// snapshots are by handle. Deleted ones are nil: the driver does not know them any more.
	snapshots map[string][]byte
	// byName has the handles of the VolumeSnapshots.
	byName  map[string]string
	address string
	ca      []byte
	taken   int64
}

const changedBlock = 64 << 10

func newCSIStorage(t *testing.T) *csiStorage {
	t.Helper()
	s := &csiStorage{site: newSite(t), snapshots: map[string][]byte{}, byName: map[string]string{}, content: make([]byte, 16*mib)}
	copy(s.content, noise(6*mib, 1))
	s.stub = &snapshotmetadata.StubSnapshotMetadata{Answer: func(r snapshotmetadata.Request, _ int, send snapshotmetadata.Sender) error {
		if s.answer != nil {
			return s.answer(r, send)
		}
		return s.tell(r, send)
	}}
	s.address, s.ca = s.stub.Start(t)
	return s
}

// tell tells the truth.
func (s *csiStorage) tell(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Token != metadataToken || r.Namespace != "varve" {
		return status.Error(codes.PermissionDenied, "no")
	}
	target := s.snapshots[s.byName[r.Snapshot]]
	base := make([]byte, len(target))
	if r.Base != "" {
		if s.snapshots[r.Base] == nil {
			return status.Errorf(codes.NotFound, "no snapshot %s", r.Base)
		}
		copy(base, s.snapshots[r.Base])
	}
	if err := send(api.BlockMetadataType_FIXED_LENGTH, int64(len(target))); err != nil {
		return err
	}
	for at := r.From / changedBlock * changedBlock; at < int64(len(target)); at += changedBlock {
		if end := at + changedBlock; !bytes.Equal(target[at:end], base[at:end]) {
			if err := send(api.BlockMetadataType_FIXED_LENGTH, int64(len(target)), snapshotmetadata.Range(at, changedBlock)); err != nil {
				return err
			}
		}
	}
	return nil
}

// write changes the volume.
func (s *csiStorage) write(at int64, data []byte) { copy(s.content[at:], data) }

// snapshotPod takes a snapshot, and returns the pod that stores it.
func (s *csiStorage) snapshotPod(t *testing.T, handle string, edit ...func(*datamove.Job)) *pod {
	t.Helper()
	job := newUpload(block)
	name := datamove.ChildName(datamove.Upload, job.UID)
	s.mu.Lock()
	s.taken++
	s.snapshots[handle], s.byName[name] = bytes.Clone(s.content), handle
	s.mu.Unlock()
	job.Snapshot = &datamove.SnapshotSource{
		SnapshotMoment: datamove.SnapshotMoment{Driver: "csi.test", Volume: "volume-1", Snapshot: handle, Taken: s.taken},
		Metadata:       &datamove.SnapshotMetadata{Address: s.address, CA: s.ca, Audience: "stub", Namespace: "varve", Name: name},
	}
	for _, f := range edit {
		f(&job)
	}
	dir := t.TempDir()
	device := filepath.Join(dir, "device")
	for path, content := range map[string][]byte{device: s.content, filepath.Join(dir, "token"): []byte(metadataToken + "\n")} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := s.newPod(t, job, device)
	p.Files.SnapshotToken = filepath.Join(dir, "token")
	p.limits.metadata = csichanges.Limits{Idle: time.Minute, Attempts: 2, Pause: time.Millisecond}
	t.Cleanup(func() {
		object, _ := p.api.text()
		if text := p.output.String() + string(object); strings.Contains(text, metadataToken) {
			t.Errorf("the token has left the pod:\n%s", text)
		}
	})
	return p
}

// stores runs a pod, and checks that its restore point is the snapshot.
func (s *csiStorage) stores(t *testing.T, p *pod) datamove.Report {
	t.Helper()
	report := p.run(t, datamove.Succeeded)
	to := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(to, bytes.Repeat([]byte{0xff}, len(s.content)), 0o600); err != nil {
		t.Fatal(err)
	}
	s.newPod(t, newDownload(block, report.SnapshotID), to).run(t, datamove.Succeeded)
	wantContent(t, to, s.content)
	return report
}

// asked returns the bases of the requests so far; "": what is allocated.
func (s *csiStorage) asked() (bases []string) {
	for _, r := range s.stub.Seen() {
		bases = append(bases, r.Base)
	}
	return bases
}

func (s *csiStorage) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	if got := s.asked(); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// nothing says that nothing has changed, and that there is no data.
func nothing(size int64) func(snapshotmetadata.Request, snapshotmetadata.Sender) error {
	return func(_ snapshotmetadata.Request, send snapshotmetadata.Sender) error {
		return send(api.BlockMetadataType_FIXED_LENGTH, size)
	}
}

func (s *csiStorage) size() int64 { return int64(len(s.content)) }

// The first upload reads what is allocated, and the next ones what has changed.
func TestSnapshotUpload_readsWhatTheDriverSays(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	full := s.stores(t, s.snapshotPod(t, "monday"))
	if full.FullReason != "" || full.FullDetail != "" || full.ReadBytes != 6*mib || full.TotalBytes != 16*mib {
		t.Errorf("%+v", full)
	}
	for i, handle := range []string{"tuesday", "wednesday"} {
		s.write(int64(3+i)*mib, noise(100, uint64(20+i)))
		s.write(12*mib, noise(changedBlock, uint64(30+i)))
		report := s.stores(t, s.snapshotPod(t, handle))
		// The samples against the parent are read, too.
		if report.FullReason != "" || report.IncrementalBytes != 2*256<<10 || report.ReadBytes > 6*mib {
			t.Errorf("%+v", report)
		}
	}
	// Nothing changed, data that went, and an upload that is longer than the one before.
	s.stores(t, s.snapshotPod(t, "thursday"))
	s.write(0, make([]byte, 5*mib))
	if report := s.stores(t, s.snapshotPod(t, "friday")); report.FullReason != "" {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "monday", "tuesday", "wednesday", "thursday")
}

// Changes are added to the restore point whose snapshot they are counted from, and to no other one.
func TestSnapshotUpload_countsFromARestorePointThatIsThere(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(mib, noise(mib, 2))
	tuesday := s.snapshotPod(t, "tuesday")
	s.stores(t, tuesday)
	s.write(2*mib, noise(mib, 3))
	id, err := datamove.PointID(tuesday.Job.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.open(t).Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if report := s.stores(t, s.snapshotPod(t, "wednesday")); report.FullReason != "" {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "monday", "monday")
}

// Whatever could mean another snapshot than the parent's is no base. The driver would say that nothing has changed: if it were believed, the
// restore point would be wrong.
func TestSnapshotUpload_refusesBasesInDoubt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second func(*datamove.Job)
		handle, says  string
	}{
		"another claim":              {second: func(j *datamove.Job) { j.SourceUID = "claim-2" }, says: "of another claim of this name"},
		"no claim":                   {first: func(j *datamove.Job) { j.SourceUID = "" }, second: func(j *datamove.Job) { j.SourceUID = "" }, says: "of another claim of this name"},
		"another volume":             {second: func(j *datamove.Job) { j.Snapshot.Volume = "volume-2" }, says: "of another volume: volume-1"},
		"another driver":             {second: func(j *datamove.Job) { j.Snapshot.Driver = "other.test" }, says: "of another volume: volume-1 of the CSI driver csi.test"},
		"the same handle":            {handle: "monday", says: "whose handle the storage has given to another one"},
		"a snapshot that is older":   {second: func(j *datamove.Job) { j.Snapshot.Taken = 1 }, first: func(j *datamove.Job) { j.Snapshot.Taken = 2 }, says: "not older than this one"},
		"taken at the same time":     {second: func(j *datamove.Job) { j.Snapshot.Taken = 1 }, says: "not older than this one"},
		"nobody knows when":          {first: func(j *datamove.Job) { j.Snapshot.Taken = 0 }, says: "does not say when"},
		"nobody knows when, this":    {second: func(j *datamove.Job) { j.Snapshot.Taken = 0 }, says: "does not say when"},
		"the parent is no snapshot":  {first: func(j *datamove.Job) { j.Snapshot = nil }, says: "no restore point of this volume is of a CSI snapshot"},
		"handle, volume with colons": {first: func(j *datamove.Job) { j.Snapshot.Volume = "volume-1:" }, says: "of another volume: volume-1:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCSIStorage(t)
			edits := func(f func(*datamove.Job)) (all []func(*datamove.Job)) {
				if f != nil {
					all = append(all, f)
				}
				return all
			}
			s.stores(t, s.snapshotPod(t, "monday", edits(c.first)...))
			before := len(s.asked())
			s.write(mib, noise(mib, 2))
			handle := c.handle
			if handle == "" {
				handle = "tuesday"
			}
			p := s.snapshotPod(t, handle, edits(c.second)...)
			s.answer = func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
				if r.Base != "" {
					return nothing(s.size())(r, send)
				}
				return s.tell(r, send)
			}
			report := s.stores(t, p)
			if report.FullReason != datamove.FullNoBaseSnapshot && report.FullReason != "DiskReplaced" || !strings.Contains(report.FullDetail, c.says) {
				t.Errorf("%+v", report)
			}
			if asked := s.asked()[before:]; len(asked) != 1 || asked[0] != "" {
				t.Errorf("asked for %q", asked)
			}
		})
	}
}

// Two restore points of one handle: nobody knows which of them the driver counts from.
func TestSnapshotUpload_refusesAHandleThatIsThereTwice(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(mib, noise(mib, 2))
	s.stores(t, s.snapshotPod(t, "tuesday"))
	s.write(2*mib, noise(mib, 3))
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(3*mib, noise(mib, 4))
	if report := s.stores(t, s.snapshotPod(t, "thursday")); report.FullReason != datamove.FullNoBaseSnapshot || !strings.Contains(report.FullDetail, "whose handle") {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "monday", "", "")
}

func TestSnapshotUpload_isFullWhenTheVolumeHasGrown(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.content = append(s.content, noise(mib, 5)...)
	report := s.stores(t, s.snapshotPod(t, "tuesday"))
	if report.FullReason != datamove.FullNoBaseSnapshot || !strings.Contains(report.FullDetail, "has 17825792 bytes, and had 16777216 in restore point") {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "")
}

// A driver that has deleted the snapshot of the parent has said nothing wrong: what is allocated is read.
func TestSnapshotUpload_isFullWhenTheBaseIsGone(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.snapshots["monday"] = nil
	s.write(mib, noise(mib, 2))
	report := s.stores(t, s.snapshotPod(t, "tuesday"))
	if report.FullReason != datamove.FullNoBaseSnapshot || !strings.Contains(report.FullDetail, "since monday") || !strings.Contains(report.FullDetail, "no snapshot monday") || report.ReadBytes != 6*mib {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "monday", "")
}

// A driver that knows neither snapshot has no metadata at all.
func TestSnapshotUpload_isFullWhenBothSnapshotsAreUnknown(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	p := s.snapshotPod(t, "tuesday")
	s.snapshots["monday"], s.snapshots["tuesday"] = nil, nil
	report := s.stores(t, p)
	if report.FullReason != datamove.FullNoSnapshotMetadata || !strings.Contains(report.FullDetail, "no snapshot monday") ||
		!strings.Contains(report.FullDetail, "has data: ") || report.ReadBytes != 16*mib {
		t.Errorf("%+v", report)
	}
}

// A driver that has an answer, and not a good one, is not believed in anything else.
func TestSnapshotUpload_readsEverythingWhenChangesFail(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(mib, noise(mib, 2))
	p := s.snapshotPod(t, "tuesday")
	s.answer = func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
		if r.Base != "" {
			return send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(mib, 512), snapshotmetadata.Range(0, 512))
		}
		return s.tell(r, send)
	}
	if report := s.stores(t, p); report.FullReason != datamove.FullNoSnapshotMetadata || !strings.Contains(report.FullDetail, "is not behind") || report.ReadBytes != 16*mib {
		t.Errorf("%+v", report)
	}
	s.wantAsked(t, "", "monday")
}

// Whatever goes wrong with the service, the whole volume is read, and the report says why.
func TestSnapshotUpload_readsEverythingWhenTheServiceFails(t *testing.T) {
	t.Parallel()
	fails := func(code codes.Code) func(*csiStorage, *pod) {
		return func(s *csiStorage, _ *pod) {
			s.answer = func(r snapshotmetadata.Request, _ snapshotmetadata.Sender) error {
				return status.Error(code, "the stub says: "+r.Token)
			}
		}
	}
	says := func(size func(*csiStorage) int64, ranges ...*api.BlockMetadata) func(*csiStorage, *pod) {
		return func(s *csiStorage, _ *pod) {
			s.answer = func(_ snapshotmetadata.Request, send snapshotmetadata.Sender) error {
				return send(api.BlockMetadataType_VARIABLE_LENGTH, size(s), ranges...)
			}
		}
	}
	for name, c := range map[string]struct {
		breaks func(*csiStorage, *pod)
		says   string
	}{
		"no service": {func(_ *csiStorage, p *pod) {
			p.Job.Snapshot.Metadata, p.Job.Snapshot.NoMetadata = nil, "nobody announces one"
		}, "nobody announces one"},
		"nobody there":          {func(_ *csiStorage, p *pod) { p.Job.Snapshot.Metadata.Address = "localhost:1" }, "connection refused"},
		"another authority":     {func(_ *csiStorage, p *pod) { p.Job.Snapshot.Metadata.CA = otherAuthority(t) }, "certificate"},
		"no certificate":        {func(_ *csiStorage, p *pod) { p.Job.Snapshot.Metadata.CA = []byte("none") }, "the CA has no certificate"},
		"an address of nothing": {func(_ *csiStorage, p *pod) { p.Job.Snapshot.Metadata.Address = "nowhere" }, "address"},
		"no token":              {func(_ *csiStorage, p *pod) { p.Files.SnapshotToken += ".absent" }, "read the token"},
		"an empty token":        {func(_ *csiStorage, p *pod) { p.Files.SnapshotToken = os.DevNull }, "the token is empty"},
		"a token it refuses":    {fails(codes.Unauthenticated), "Unauthenticated: the stub says: (token)"},
		"denied":                {fails(codes.PermissionDenied), "PermissionDenied"},
		"busy":                  {fails(codes.Unavailable), "Unavailable"},
		"not implemented":       {fails(codes.Unimplemented), "Unimplemented"},
		"a base too old":        {fails(codes.FailedPrecondition), "FailedPrecondition"},
		"another size":          {says(func(s *csiStorage) int64 { return s.size() + 512 }), "is said to have 16777728 bytes, and has 16777216"},
		"out of order":          {says((*csiStorage).size, snapshotmetadata.Range(mib, 512), snapshotmetadata.Range(0, 512)), "is not behind"},
		"over the end":          {says((*csiStorage).size, snapshotmetadata.Range(16*mib-512, 1024)), "ends behind"},
		"a stream that breaks": {func(s *csiStorage, _ *pod) {
			s.answer = func(_ snapshotmetadata.Request, send snapshotmetadata.Sender) error {
				return errors.Join(send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(0, 512)), status.Error(codes.DataLoss, "lost"))
			}
		}, "lost"},
		"silence": {func(s *csiStorage, p *pod) {
			p.limits.metadata.Idle = 20 * time.Millisecond
			s.answer = func(r snapshotmetadata.Request, _ snapshotmetadata.Sender) error {
				<-r.Done
				return nil
			}
		}, "2 attempts brought nothing new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCSIStorage(t)
			for i, handle := range []string{"monday", "tuesday"} {
				s.write(int64(7+i)*mib, noise(mib, uint64(i)))
				p := s.snapshotPod(t, handle)
				c.breaks(s, p)
				report := s.stores(t, p)
				if report.FullReason != datamove.FullNoSnapshotMetadata || !strings.Contains(report.FullDetail, c.says) || report.ReadBytes != 16*mib {
					t.Errorf("%s: %+v", handle, report)
				}
			}
		})
	}
}

func otherAuthority(t *testing.T) []byte {
	t.Helper()
	_, ca := (&snapshotmetadata.StubSnapshotMetadata{}).Start(t)
	return ca
}

// A driver that counts from something else than it is asked to, or that leaves out what has data, is found out by samples.
func TestSnapshotUpload_findsALyingDriver(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.answer = nothing(s.size())
	report := s.stores(t, s.snapshotPod(t, "monday"))
	if report.FullReason != datamove.FullNoSnapshotMetadata || !strings.Contains(report.FullDetail, "the driver says that there is no data in bytes") {
		t.Errorf("%+v", report)
	}
	s.write(0, noise(6*mib, 9))
	report = s.stores(t, s.snapshotPod(t, "tuesday"))
	if report.FullReason != "ContentDiffers" || !strings.Contains(report.FullDetail, "csi.test says that a part of the volume has not changed since snapshot monday") {
		t.Errorf("%+v", report)
	}
}

// Drivers that know a clone's own blocks, and not those of the image below, forget where the disk begins.
func TestSnapshotUpload_findsWhatIsLeftOutWhereADiskBeginsOrEnds(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"begins": 0, "ends": 16*mib - 512} {
		s := newCSIStorage(t)
		clear(s.content)
		s.write(int64(at), noise(512, 7))
		s.write(5*mib, noise(mib, 8))
		s.answer = func(_ snapshotmetadata.Request, send snapshotmetadata.Sender) error {
			return send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(5*mib, mib))
		}
		if report := s.stores(t, s.snapshotPod(t, "monday")); report.FullReason != datamove.FullNoSnapshotMetadata {
			t.Errorf("%s: %+v", name, report)
		}
	}
}

func TestChooseSamples_areSpreadAndWithin(t *testing.T) {
	t.Parallel()
	for _, total := range []int64{0, 1, granuleBytes, granuleBytes + 1, 64 * granuleBytes, 65 * granuleBytes, 1 << 40} {
		got := chooseSamples(total, "seed")
		granules := (total + granuleBytes - 1) / granuleBytes
		if int64(len(got)) < min(granules, zeroSamples) || len(got) > zeroSamples+2 || !slices.IsSorted(got) {
			t.Errorf("%d: %v", total, got)
		}
		for i, at := range got {
			if at%granuleBytes != 0 || at >= total || i > 0 && at == got[i-1] {
				t.Errorf("%d: %v", total, got)
			}
		}
		if total > 0 && (got[0] != 0 || got[len(got)-1] != (granules-1)*granuleBytes) {
			t.Errorf("%d: %v", total, got)
		}
	}
}

// A process that comes after one that died stores the same restore point, and another upload counts from it.
func TestSnapshotUpload_isRepeated(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.stores(t, s.snapshotPod(t, "monday"))
	s.write(mib, noise(mib, 2))
	p := s.snapshotPod(t, "tuesday")
	s.answer = func(snapshotmetadata.Request, snapshotmetadata.Sender) error {
		return status.Error(codes.DataLoss, "lost")
	}
	first := s.stores(t, p)
	if err := os.Remove(p.Files.Volume); err != nil {
		t.Fatal(err)
	}
	again := s.newPod(t, p.Job, p.Files.Volume).run(t, datamove.Succeeded)
	if again.SnapshotID != first.SnapshotID || again.FullReason != datamove.FullNoSnapshotMetadata || again.FullDetail == "" {
		t.Errorf("%+v, then %+v", first, again)
	}
	s.answer = nil
	s.write(2*mib, noise(mib, 3))
	if report := s.stores(t, s.snapshotPod(t, "wednesday")); report.FullReason != "" {
		t.Errorf("%+v", report)
	}
}

// A cancel does not wait for the service.
func TestSnapshotUpload_isCanceledWhileItAsks(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	p := s.snapshotPod(t, "monday")
	p.limits.metadata.Idle = time.Hour
	s.answer = func(r snapshotmetadata.Request, _ snapshotmetadata.Sender) error {
		p.api.cancel()
		<-r.Done
		return nil
	}
	p.run(t, datamove.Canceled)
	if points := s.points(t); len(points) != 0 {
		t.Errorf("%d restore points", len(points))
	}
}

// Ranges need not begin and end where blocks do.
func TestSnapshotUpload_readsRangesOfAnyLength(t *testing.T) {
	t.Parallel()
	s := newCSIStorage(t)
	s.content = make([]byte, 16*mib)
	s.answer = func(r snapshotmetadata.Request, send snapshotmetadata.Sender) error {
		if r.Base == "" {
			return send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(3*mib+7*512, 512), snapshotmetadata.Range(5*mib-512, 2*512))
		}
		return send(api.BlockMetadataType_VARIABLE_LENGTH, s.size(), snapshotmetadata.Range(9*mib-512, 2*512), snapshotmetadata.Range(16*mib-512, 512))
	}
	s.write(3*mib+7*512, noise(512, 1))
	s.write(5*mib-512, noise(2*512, 2))
	if report := s.stores(t, s.snapshotPod(t, "monday")); report.FullReason != "" || report.ReadBytes >= mib*2 {
		t.Errorf("%+v", report)
	}
	s.write(9*mib-512, noise(2*512, 3))
	s.write(16*mib-512, noise(512, 4))
	if report := s.stores(t, s.snapshotPod(t, "tuesday")); report.FullReason != "" {
		t.Errorf("%+v", report)
	}
}

func withoutIdentity(points []*repository.RestorePoint) (out []*repository.RestorePoint) {
	for _, p := range points {
		o := *p
		o.Disks = slices.Clone(p.Disks)
		o.Disks[0].Identity = ""
		out = append(out, &o)
	}
	return out
}

// Which restore point is the base is the order's in which they were made, whatever the clocks and the list say.
func TestChooseBase(t *testing.T) {
	t.Parallel()
	at := func(minute int) time.Time { return time.Date(2026, 11, 25, 10, minute, 0, 0, time.UTC) }
	moment := func(snapshot string, taken int64) datamove.SnapshotMoment {
		return datamove.SnapshotMoment{Driver: "csi.test", Volume: "volume-1", Snapshot: snapshot, Taken: taken}
	}
	point := func(id string, minute int, m datamove.SnapshotMoment) *repository.RestorePoint {
		return &repository.RestorePoint{ID: id, Time: at(minute), Disks: []repository.Disk{{Name: datamove.DiskName, Identity: "claim", Change: m.Name(id)}}}
	}
	other := moment("monday", 1)
	other.Driver = "other.test"
	ahead := point("behind", 2, moment("tuesday", 2))
	ahead.After = at(50)
	copied := point("copied", 3, moment("tuesday", 2))
	copied.Disks[0].Change = moment("tuesday", 2).Name("original")
	own := point("own", 9, moment("friday", 9))
	for name, c := range map[string]struct {
		points []*repository.RestorePoint
		want   string
		why    string
	}{
		"the latest":                    {[]*repository.RestorePoint{point("b", 2, moment("tuesday", 2)), point("a", 1, moment("monday", 1))}, "b", ""},
		"after a clock that was ahead":  {[]*repository.RestorePoint{ahead, point("ahead", 50, moment("monday", 1))}, "behind", ""},
		"not the one that is repeated":  {[]*repository.RestorePoint{point("a", 1, moment("monday", 1)), own}, "a", ""},
		"nothing but that":              {[]*repository.RestorePoint{own}, "", ""},
		"a handle of another driver":    {[]*repository.RestorePoint{point("o", 1, other), point("a", 2, moment("monday", 1))}, "a", ""},
		"a name of another point":       {[]*repository.RestorePoint{point("a", 1, moment("monday", 1)), copied}, "a", ""},
		"a handle that is there before": {[]*repository.RestorePoint{point("a", 1, moment("monday", 1)), point("b", 2, moment("monday", 2))}, "", "has given to another one"},
	} {
		if base, why := chooseBase(withoutIdentity(c.points), "own", "", moment("friday", 9)); base != nil || c.want != "" && why == "" {
			t.Errorf("%s: of a claim that nobody knows: %v, %q", name, base, why)
		}
		base, why := chooseBase(c.points, "own", "claim", moment("friday", 9))
		got := ""
		if base != nil {
			got = base.point.ID
		}
		if got != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: %q, %q", name, got, why)
		}
	}
}

func TestSnapshotMoment_isReadFromItsOwnRestorePoint(t *testing.T) {
	t.Parallel()
	m := datamove.SnapshotMoment{Driver: "csi.test", Volume: "a:b%c d/", Snapshot: "snap:\"1\"\n", Taken: 7}
	const point = "0123456789abcdef0123456789abcdef"
	if got, err := datamove.ParseSnapshotMoment(point, m.Name(point)); err != nil || got != m {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"", "daily-1@uid/root", m.Name("another"), m.Name(point) + ":", strings.Replace(m.Name(point), "%3A", "%zz", 1), m.Name(point) + "x"} {
		if got, err := datamove.ParseSnapshotMoment(point, name); err == nil {
			t.Errorf("%q: %+v", name, got)
		}
	}
}
