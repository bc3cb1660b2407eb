//go:build soak

package soak

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

const (
	// outageMiB is how much random data a disk has that is moved while the storage goes away.
	outageMiB = 2048
	// noticeDeath and noticeSilence are how long it may take until a mover says that the storage is gone: one that
	// refuses connections, and one that accepts them and says nothing, for which a request waits two minutes.
	noticeDeath, noticeSilence = 90 * time.Second, 3 * time.Minute
	waitsForStorage            = "waiting for the storage since "
)

// TestOutage_isWaitedFor takes the S3 service away for SOAK_OUTAGE (10) minutes in the middle of an upload and of a
// restore: once its process ends, and once it stands still with its connections open. Both wait, say since when, and go
// on; everything comes back as it was.
func TestOutage_isWaitedFor(t *testing.T) {
	minutes := envInt(t, "SOAK_OUTAGE", 10)
	t.Logf("SOAK_OUTAGE=%d", minutes)
	ctx := t.Context()
	s := open(t, "varve-soak-outage", nil)
	at, err := s.BucketLocation(ctx, "soak-outage", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() { s.must(at.Remove(context.WithoutCancel(ctx))) })
	t.Cleanup(func() { s.must(s.DeleteUploads(context.WithoutCancel(ctx), 12*time.Minute)) })
	t.Cleanup(func() { s.must(startStorage(context.WithoutCancel(ctx))) })
	s.must(s.Claim(ctx, "disk", 3*gib, corev1.PersistentVolumeFilesystem))
	o := &outages{
		soak: s, at: at, lasts: time.Duration(minutes) * time.Minute, run: strconv.FormatInt(time.Now().Unix(), 36),
	}
	before, movers := s.census(), s.followMovers()
	stored := o.fill("first")
	o.upload(stored)
	s.must(s.WaitUpload(ctx, stored.upload, 10*time.Minute))
	for _, kind := range []outageKind{
		{"ends", noticeDeath, syscall.SIGKILL, startStorage},
		{
			"silent", noticeSilence, syscall.SIGSTOP,
			func(context.Context) error { return signalStorage(syscall.SIGCONT) },
		},
	} {
		next := o.fill(kind.name)
		o.moveThrough(kind, next, stored)
		stored = next
	}
	s.must(o.restore(stored, "last"))
	o.compare(stored, "last")
	s.deleteSnapshots()
	s.waitNothingLeft(before)
	movers.check(t, 6, 0)
}

type outages struct {
	*soak
	at    *lab.Location
	run   string
	lasts time.Duration
}

// outageKind is a way in which the storage goes away and comes back, and how long it may take until a mover says so.
type outageKind struct {
	name     string
	notice   time.Duration
	away     syscall.Signal
	comeBack func(context.Context) error
}

// storedDisk is what the disk held at a time, and its DataUpload.
type storedDisk struct {
	name, sum string
	upload    *velerov2.DataUpload
}

// fill gives the disk other data, and takes a snapshot of it.
func (o *outages) fill(name string) *storedDisk {
	o.t.Helper()
	ctx := o.t.Context()
	box, err := o.Toolbox(ctx, "fill-"+name, "disk")
	o.must(err)
	text, err := box.Run(ctx, fmt.Sprintf(`cd /mnt/disk &&
		dd if=/dev/urandom of=disk.img bs=1M count=%d conv=notrunc,fsync status=none && sha256sum disk.img`, outageMiB))
	o.must(err)
	o.must(box.Close(ctx))
	d := &storedDisk{name: name}
	d.sum, _, _ = strings.Cut(text, " ")
	o.must(o.Snapshot(ctx, name, "disk", "box", 3*time.Minute))
	return d
}

// upload begins to store a disk.
func (o *outages) upload(d *storedDisk) {
	o.t.Helper()
	name := fmt.Sprintf("%s-%s-%s", o.Namespace, o.run, d.name)
	u, err := o.UploadSnapshot(o.t.Context(), name, d.name, "disk", "box", o.at, time.Minute)
	o.must(err)
	d.upload = u
}

func (o *outages) restore(d *storedDisk, claim string) error {
	mode := corev1.PersistentVolumeFilesystem
	return o.Download(o.t.Context(), program(o.t), os.Getenv("KUBECONFIG"), d.upload, claim, mode)
}

// moveThrough stores next and restores stored at once, and takes the storage away when both are in the middle.
func (o *outages) moveThrough(kind outageKind, next, stored *storedDisk) {
	o.t.Helper()
	ctx, claim := o.t.Context(), "through-"+kind.name
	restored := make(chan error, 1)
	go func() { restored <- o.restore(stored, claim) }()
	o.upload(next)
	download := client.ObjectKey{Namespace: o.at.Namespace, Name: stored.upload.Name + "-again"}
	what := "an upload and a restore to be in the middle"
	o.must(wait.For(ctx, 5*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		up, down := o.look(ctx, next.upload, download)
		return up.isInTheMiddle() && down.isInTheMiddle(), fmt.Sprintf("%+v, %+v", up, down), errOfEnded(up, down)
	}))
	gone := time.Now()
	o.must(signalStorage(kind.away))
	back := gone.Add(o.lasts)
	o.t.Logf("%s: the storage is gone since %s", kind.name, gone.UTC().Format(time.TimeOnly))
	said := make([]string, 2)
	o.must(wait.For(ctx, o.lasts+time.Minute, "the outage to last", func(ctx context.Context) (bool, string, error) {
		up, down := o.look(ctx, next.upload, download)
		for i, m := range []movement{up, down} {
			switch since := m.waitsSince(); {
			case since == said[i]:
			case said[i] == "":
				o.t.Logf("%s after %s: %s: %s", kind.name, time.Since(gone).Round(time.Second), m.name, m.Message)
				said[i] = since
			default:
				return false, "", fmt.Errorf("%s says %q, and said that it waits since %s", m.name, m.Message, said[i])
			}
		}
		return time.Now().After(back), fmt.Sprintf("%+v, %+v", up, down), errOfEnded(up, down)
	}))
	for i, what := range []string{"upload", "restore"} {
		at, err := time.Parse("15:04:05 MST", said[i])
		early := at.Sub(gone.UTC().Truncate(time.Second)) // of the same day, or the day after
		early -= early.Round(24 * time.Hour)
		if said[i] == "" && o.lasts < kind.notice {
			continue // nobody could know
		}
		if err != nil || early.Abs() > o.lasts {
			o.t.Errorf("%s: the %s says that it waits since %q, and the storage was gone at %s",
				kind.name, what, said[i], gone.UTC())
		}
	}
	o.must(kind.comeBack(ctx))
	came := time.Now()
	o.must(o.WaitUpload(ctx, next.upload, 15*time.Minute))
	o.must(<-restored)
	o.t.Logf("%s: both were done %s after the storage was back", kind.name, time.Since(came).Round(time.Second))
	o.compare(stored, claim)
}

// movement is the state of a DataUpload or a DataDownload.
type movement struct {
	name    string
	Phase   velerov2.Phase
	Message string
	velerov2.Progress
}

func (o *outages) look(ctx context.Context, u *velerov2.DataUpload, download client.ObjectKey) (up, down movement) {
	d := &velerov2.DataDownload{}
	if o.Get(ctx, client.ObjectKeyFromObject(u), u) == nil {
		up = movement{u.Name, u.Status.Phase, u.Status.Message, u.Status.Progress}
	}
	if o.Get(ctx, download, d) == nil {
		down = movement{d.Name, d.Status.Phase, d.Status.Message, d.Status.Progress}
	}
	return up, down
}

func (m *movement) isInTheMiddle() bool {
	return m.Phase == velerov2.PhaseInProgress && m.BytesDone > 0 && m.BytesDone < m.TotalBytes
}

// waitsSince returns since when a movement says that it waits for the storage, or "".
func (m *movement) waitsSince() string {
	rest, _ := strings.CutPrefix(m.Message, waitsForStorage)
	since, _, ok := strings.Cut(rest, ": ")
	if !ok || rest == m.Message {
		return ""
	}
	return since
}

func errOfEnded(all ...movement) error {
	for _, m := range all {
		if m.Phase.Ended() {
			return fmt.Errorf("%s is %s: %s", m.name, m.Phase, m.Message)
		}
	}
	return nil
}

// compare compares a claim with what was stored, and deletes it.
func (o *outages) compare(d *storedDisk, claim string) {
	o.t.Helper()
	ctx := o.t.Context()
	box, err := o.Toolbox(ctx, "compare-"+claim, claim)
	o.must(err)
	text, err := box.Run(ctx, "sha256sum /mnt/"+claim+"/disk.img")
	o.must(err)
	o.must(box.Close(ctx))
	if got, _, _ := strings.Cut(text, " "); got != d.sum {
		verdict.Errorf(o.t, "%s: restored %s, the disk held %s", d.name, got, d.sum)
	}
	o.must(o.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: gen.Meta(o.Namespace, claim)}))
}

// deleteSnapshots deletes what is left of the snapshots of the namespace.
func (s *soak) deleteSnapshots() {
	s.t.Helper()
	s.must(s.DeleteAllOf(s.t.Context(), &snapshotv1.VolumeSnapshot{}, client.InNamespace(s.Namespace)))
}

// signalStorage sends a signal to the process of the box's S3 service.
func signalStorage(signal syscall.Signal) error {
	want := filepath.Join(os.Getenv("VARVE_BOX_DIR"), "bin", "versitygw")
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return err
	}
	for _, link := range programs {
		if path, err := os.Readlink(link); err != nil || path != want {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return err
		}
		return syscall.Kill(pid, signal)
	}
	return fmt.Errorf("send %s to the S3 service of the box: no process runs %s: run `make box-s3`", signal, want)
}

// startStorage brings the box's S3 service up, if it is not.
func startStorage(ctx context.Context) error {
	program, err := filepath.Abs("../../build/bin/box")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, program, "s3", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("bring the S3 service up: %w: %s", err, out)
	}
	return nil
}
