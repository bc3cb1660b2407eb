package moverpod

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/authority"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	moverHost   = "du-pod.varve"
	tunnelToken = "the-token-of-the-tunnel"
)

// machine is a launcher with one volume, as the mover sees it.
type machine struct {
	volume *readVolume
	ca     []byte
}

// readVolume counts what is read of a volume, and calls hook, if it is set, before each read.
type readVolume struct {
	*exporttest.Volume

	bytes atomic.Int64
	mu    sync.Mutex
	hook  func(context.Context, extent.Extent) error
	// regions, if it is set, reports the regions of an extent in the place of the volume.
	regions func(e extent.Extent, report func(export.Region) bool)
}

func (v *readVolume) Regions(ctx context.Context, e extent.Extent, report func(export.Region) bool) error {
	if v.regions == nil {
		return v.Volume.Regions(ctx, e, report)
	}
	v.regions(e, report)
	return nil
}

func (v *readVolume) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	v.mu.Lock()
	hook := v.hook
	v.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, e); err != nil {
			return err
		}
	}
	return v.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
		v.bytes.Add(int64(len(c.Data)))
		return sink(c)
	})
}

func (v *readVolume) setHook(hook func(context.Context, extent.Extent) error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hook = hook
}

// newMachine returns a machine with a disk. The backups of a machine show it, and what changed says.
func newMachine(size int64, seed uint64) *machine {
	return &machine{volume: &readVolume{Volume: exporttest.NewVolume("root", size, false, seed)}}
}

// change writes to blocks of the disk. The next backup is an incremental that has them.
func (m *machine) change(seed uint64, blocks ...int) {
	old := m.volume.Volume
	next := &exporttest.Volume{Description: old.Description, Content: bytes.Clone(old.Content), Dirty: make([]bool, len(old.Dirty))}
	next.Description.Incremental = true
	next.Description.PointInTime += "+"
	for i, b := range blocks {
		copy(next.Content[b*exporttest.BlockBytes:], noise(exporttest.BlockBytes, seed+uint64(i)))
		next.Dirty[b] = true
	}
	m.volume = &readVolume{Volume: next}
}

// newMachineUpload returns a job for the volume in a backup. The base is of the backup that made it.
func newMachineUpload(backup, base string) datamove.Job {
	job := newUpload("")
	job.Tunnel = &datamove.TunnelSource{BackupUID: types.UID("uid-" + backup), Volume: "root", Checkpoint: "daily-" + backup}
	if base != "" {
		job.Tunnel.BaseCheckpoint, job.Tunnel.BaseUID = "daily-"+base, types.UID("uid-"+base)
	}
	return job
}

// tunnelPod is a pod with its port.
type tunnelPod struct {
	*pod

	address string
}

// newTunnelPod returns a pod that listens on a port of its own as long as the test runs.
func (s *site) newTunnelPod(t *testing.T, m *machine, job datamove.Job) *tunnelPod {
	t.Helper()
	p := s.newPod(t, job, "")
	dir := t.TempDir()
	p.Files.TunnelToken, p.Files.TunnelCertificate, p.Files.TunnelKey = filepath.Join(dir, "token"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	p.Files.TunnelEnded, p.Files.Definition = filepath.Join(dir, datamove.EndpointEndedKey), filepath.Join(dir,
		datamove.DefinitionKey)
	issuer := newIssuer(t)
	pair, err := issuer.Issue([]string{moverHost})
	if err != nil {
		t.Fatal(err)
	}
	m.ca = issuer.Authorities()
	for path, content := range map[string][]byte{p.Files.TunnelToken: []byte(tunnelToken), p.Files.TunnelCertificate: pair.Certificate, p.Files.TunnelKey: pair.Key, p.Files.TunnelEnded: nil} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tp := &tunnelPod{pod: p, address: freeAddress(t)}
	p.listenAt = tp.address
	p.Listen = listenAt(tp.address)
	t.Cleanup(func() {
		if strings.Contains(p.output.String(), tunnelToken) {
			t.Errorf("the token of the tunnel is in the log:\n%s", p.output)
		}
	})
	return tp
}

// freeAddress returns an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// connect runs the launcher's side of the tunnel, with change made to its configuration, until the test ends or stop is called.
func (p *tunnelPod) connect(t *testing.T, m *machine, change func(*tunnel.Config)) (stop func()) {
	t.Helper()
	config := tunnel.Config{
		Address: p.address, ServerName: moverHost, BackupUID: string(p.Job.Tunnel.BackupUID),
		CA: func() (*x509.CertPool, error) {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(m.ca)
			return pool, nil
		},
		Token: func() ([]byte, error) { return []byte(tunnelToken), nil }, MinBackoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond,
	}
	if change != nil {
		change(&config)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- tunnel.Run(ctx, config, exporttest.Volumes{m.volume.Description.Name: m.volume}, []export.Info{m.volume.Info()})
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// uploadMachine stores the disk of a machine, whose launcher is connected, and returns the report.
func (s *site) uploadMachine(t *testing.T, m *machine, job datamove.Job) datamove.Report {
	t.Helper()
	p := s.newTunnelPod(t, m, job)
	defer p.connect(t, m, nil)()
	return p.run(t, datamove.Succeeded)
}

// wantRestored restores what a report tells of, and compares it with the machine's disk.
func (s *site) wantRestored(t *testing.T, report datamove.Report, m *machine) {
	t.Helper()
	to := t.TempDir()
	s.newPod(t, newDownload(corev1.PersistentVolumeFilesystem, report.SnapshotID), to).run(t, datamove.Succeeded)
	wantContent(t, filepath.Join(to, datamove.ImageFile), m.volume.Content)
}

const diskBytes = 16*mib + 512

// A full backup, and two incrementals that read what has changed and nothing else.
func TestMachineUpload_fullAndIncrementals(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 1)
	job := newMachineUpload("1", "")
	job.Labels = map[string]string{datamove.LabelGroup: "monday"}
	full := s.uploadMachine(t, m, job)
	if points := s.points(t); len(points) != 1 || points[0].Group != "monday" || points[0].Labels[datamove.LabelGroup] != "monday" {
		verdict.Errorf(t, "%+v", points)
	}
	if full.TotalBytes != diskBytes || full.FullReason != "" || full.Repository == "" {
		t.Errorf("%+v", full)
	}
	s.wantRestored(t, full, m)
	reports := []datamove.Report{full}
	machines := []*machine{{volume: m.volume}}
	for i, backup := range []string{"2", "3"} {
		m.change(uint64(100*i), 3, 4, 77+i)
		report := s.uploadMachine(t, m, newMachineUpload(backup, []string{"1", "2"}[i]))
		if report.FullReason != "" || report.IncrementalBytes == 0 || report.IncrementalBytes > 3*256<<10 {
			t.Errorf("%+v", report)
		}
		// The repository compares some parts that have not changed with its own.
		if read := m.volume.bytes.Load(); read > 6*mib {
			t.Errorf("%d bytes were read for 3 blocks", read)
		}
		reports, machines = append(reports, report), append(machines, &machine{volume: m.volume})
	}
	for i := range reports {
		s.wantRestored(t, reports[i], machines[i])
	}
}

// The definition of the machine is stored with its disk. One that cannot be stored fails the upload for good. Neither is told to anybody.
func TestMachineUpload_storesTheDefinition(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	for name, c := range map[string]struct {
		definition string
		outcome    datamove.Outcome
	}{
		"a definition": {`{"vm":{"name":"web"},"password":"` + password + `"}`, datamove.Succeeded},
		"no JSON":      {`{"password":"` + password, datamove.Failed},
		"empty":        {"", datamove.Failed},
		"too large":    {`"` + password + strings.Repeat("x", repository.MaxDefinitionBytes) + `"`, datamove.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := newSite(t), newMachine(diskBytes, 8)
			job := newMachineUpload("1", "")
			job.Definition = true
			p := s.newTunnelPod(t, m, job)
			if err := os.WriteFile(p.Files.Definition, []byte(c.definition), 0o400); err != nil {
				t.Fatal(err)
			}
			p.connect(t, m, nil)
			report := p.run(t, c.outcome)
			if strings.Contains(p.output.String()+report.Encode(), password) {
				t.Errorf("the definition is told: %s\n%+v", p.output, report)
			}
			if c.outcome == datamove.Failed {
				if len(s.points(t)) > 0 || !strings.Contains(report.Message, "the definition ") {
					verdict.JudgeErrorf(t, len(s.points(t)) > 0, "%d restore points, %+v", len(s.points(t)), report)
				}
				return
			}
			s.wantRestored(t, report, m)
			r := s.open(t)
			point := s.points(t)[0]
			if got, err := r.Definition(t.Context(), point); err != nil || string(got) != c.definition {
				verdict.JudgeErrorf(t, err == nil, "%s, %v", got, err)
			}
		})
	}
}

// A repository without the base gets everything, from the same point in time, and the report says so.
func TestMachineUpload_isFullWithoutTheBase(t *testing.T) {
	t.Parallel()
	m := newMachine(diskBytes, 2)
	other := newSite(t)
	other.uploadMachine(t, m, newMachineUpload("1", ""))
	m.change(5, 9)
	for name, c := range map[string]struct {
		prepare func(*site)
		base    string
		reason  string
	}{
		"empty repository": {func(*site) {}, "1", "NoParent"},
		"another checkpoint": {func(s *site) {
			s.uploadMachine(t, newMachine(diskBytes, 2), newMachineUpload("0", ""))
		}, "1", "OtherBase"},
		"same name of another tracker": {func(s *site) {
			job := newMachineUpload("1", "")
			job.Tunnel.BackupUID = "uid-of-another-backup"
			s.uploadMachine(t, newMachine(diskBytes, 2), job)
		}, "1", "OtherBase"},
		"base that nobody names": {func(s *site) { s.uploadMachine(t, newMachine(diskBytes, 7), newMachineUpload("1", "")) }, "", ""},
	} {
		s := newSite(t)
		c.prepare(s)
		report := s.uploadMachine(t, m, newMachineUpload("2", c.base))
		if report.FullReason != c.reason {
			t.Errorf("%s: full because of %q, want %q", name, report.FullReason, c.reason)
		}
		s.wantRestored(t, report, m)
	}
}

// The parent is the restore point of the base, and not the latest one: a group of DataUploads that failed halfway leaves a later one.
func TestMachineUpload_startsFromTheBase(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 3)
	s.uploadMachine(t, m, newMachineUpload("1", ""))
	base := m.volume.Volume
	m.change(1, 20, 21) // it was stored, but the tracker did not move
	s.uploadMachine(t, m, newMachineUpload("2", "1"))
	later := m.volume.Volume
	m.volume = &readVolume{Volume: base}
	m.change(50, 40)
	copy(m.volume.Content[20*exporttest.BlockBytes:22*exporttest.BlockBytes], later.Content[20*exporttest.BlockBytes:])
	m.volume.Dirty[20], m.volume.Dirty[21] = true, true
	report := s.uploadMachine(t, m, newMachineUpload("3", "1"))
	if report.FullReason != "" || m.volume.bytes.Load() > 6*mib {
		t.Errorf("%+v, %d bytes read", report, m.volume.bytes.Load())
	}
	s.wantRestored(t, report, m)
}

// The tunnel is cut again and again. One restore point comes of it, and no byte is wrong.
func TestMachineUpload_survivesCuts(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(64*mib, 4)
	p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
	var dials atomic.Int64
	p.connect(t, m, func(c *tunnel.Config) {
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil || dials.Add(1) > 6 {
				return nc, err
			}
			return &cutConn{Conn: nc, left: 3 * mib}, nil
		}
	})
	report := p.run(t, datamove.Succeeded)
	if dials.Load() < 5 {
		t.Errorf("the launcher has dialed %d times: nothing was cut", dials.Load())
	}
	s.wantRestored(t, report, m)
	if points := s.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
}

// cutConn breaks when so many bytes were sent.
type cutConn struct {
	net.Conn

	mu   sync.Mutex
	left int
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left -= len(p); c.left < 0 {
		return 0, errors.Join(errors.New("cut"), c.Close())
	}
	return c.Conn.Write(p)
}

// A launcher that does not come back ends the process, and not the DataUpload: the driver knows whether the backup
// lives.
func TestMachineUpload_waitsForTheLauncher(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 5)
	job := newMachineUpload("1", "")
	p := s.newTunnelPod(t, m, job)
	p.limits.launcher = 300 * time.Millisecond
	if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "no launcher has offered volume root for 300ms") {
		t.Error(err)
	}
	if report, ok := p.api.report(t); ok {
		t.Errorf("%+v", report)
	}
	// It comes after a while.
	p.limits.launcher = time.Minute
	time.AfterFunc(300*time.Millisecond, func() { p.connect(t, m, nil) })
	s.wantRestored(t, p.run(t, datamove.Succeeded), m)
}

func TestMachineUpload_refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*machine)
		says   string
	}{
		"a volume that the launcher does not offer": {func(m *machine) { m.volume.Description.Name = "data" }, "has no volume root"},
		"a disk that breaks": {func(m *machine) {
			m.volume.setHook(func(context.Context, extent.Extent) error { return errclass.Errorf(errclass.Corrupt, "bad sector") })
		}, "bad sector: the machine's disk cannot be read"},
	} {
		m := newMachine(diskBytes, 6)
		c.change(m)
		s := newSite(t)
		p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
		stop := p.connect(t, m, nil)
		p.fails(t, c.says)
		stop()
		if points := s.points(t); len(points) != 0 {
			t.Errorf("%s: %d restore points", name, len(points))
		}
	}
}

// The backup has ended. The mover is told, and neither waits for the launcher nor for one that hangs.
func TestMachineUpload_isToldThatTheBackupHasEnded(t *testing.T) {
	t.Parallel()
	for name, connected := range map[string]bool{"a disk that hangs": true, "no launcher": false} {
		s, m := newSite(t), newMachine(diskBytes, 10)
		p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
		p.limits.launcher, p.limits.ended = time.Hour, 10*time.Millisecond
		end := func() {
			if err := os.WriteFile(p.Files.TunnelEnded, []byte("VirtualMachineBackup app/monday was deleted"), 0o600); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		stop := func() {}
		if connected {
			m.volume.setHook(func(ctx context.Context, _ extent.Extent) error { end(); <-ctx.Done(); return ctx.Err() })
			stop = p.connect(t, m, nil)
		} else {
			time.AfterFunc(200*time.Millisecond, end)
		}
		p.fails(t, "app/monday was deleted: the next DataUpload takes another moment")
		stop()
		if points := s.points(t); len(points) != 0 {
			t.Errorf("%s: %d restore points", name, len(points))
		}
	}
}

// Who does not have the token of the backup is nobody's launcher.
func TestMachineUpload_knowsItsLauncher(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(diskBytes, 7)
	for name, change := range map[string]func(*tunnel.Config){
		"another token":  func(c *tunnel.Config) { c.Token = func() ([]byte, error) { return []byte("guessed"), nil } },
		"another backup": func(c *tunnel.Config) { c.BackupUID = "another" },
	} {
		p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
		p.limits.launcher = 300 * time.Millisecond
		stop := p.connect(t, m, change)
		if err := Run(t.Context(), p.Options); err == nil || !strings.Contains(err.Error(), "no launcher") {
			t.Errorf("%s: %v", name, err)
		}
		stop()
	}
	if read := m.volume.bytes.Load(); read != 0 {
		t.Errorf("%d bytes were read", read)
	}
}

// The mover is killed again and again. Its successors make one restore point, of the same moment.
func TestMachineUpload_survivesKills(t *testing.T) {
	t.Parallel()
	s, m := newSite(t), newMachine(96*mib, 8)
	p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
	p.limits.flush, p.limits.progress = 50*time.Millisecond, 10*time.Millisecond
	reading := make(chan struct{}, 1)
	m.volume.setHook(func(ctx context.Context, e extent.Extent) error {
		if e.Offset > 16*mib {
			select {
			case reading <- struct{}{}:
			default:
			}
		}
		return nil
	})
	p.connect(t, m, nil)
	for range 3 {
		c := p.startChild(t)
		select {
		case <-reading:
		case <-time.After(time.Minute):
			t.Fatal("nothing is read")
		}
		_ = c.Process.Signal(syscall.SIGKILL)
		<-c.ended
	}
	c := p.startChild(t)
	if code := c.wait(t, patience); code != 0 {
		t.Fatalf("exit code %d\n%s", code, p.output)
	}
	report, ok := p.api.report(t)
	if !ok || report.Outcome != datamove.Succeeded {
		t.Fatalf("%+v", report)
	}
	s.wantRestored(t, report, m)
	if points := s.points(t); len(points) != 1 {
		verdict.Errorf(t, "%d restore points", len(points))
	}
	// Once more, after the restore point was published and before the report: nothing is read, and no launcher is there any more.
	p.api.change(func(o map[string]any) { delete(o["metadata"].(map[string]any), "annotations") })
	if c := p.startChild(t); c.wait(t, patience) != 0 {
		t.Error(p.output)
	}
	if again, _ := p.api.report(t); again.SnapshotID != report.SnapshotID {
		t.Errorf("%+v, then %+v", report, again)
	}
}

// A cancel ends the work at once, also if the launcher answers nothing, or is not there.
func TestMachineUpload_cancelsInTime(t *testing.T) {
	t.Parallel()
	for name, connected := range map[string]bool{"a disk that hangs": true, "no launcher": false} {
		s, m := newSite(t), newMachine(diskBytes, 9)
		m.volume.setHook(func(ctx context.Context, _ extent.Extent) error { <-ctx.Done(); return ctx.Err() })
		p := s.newTunnelPod(t, m, newMachineUpload("1", ""))
		stop := func() {}
		if connected {
			stop = p.connect(t, m, nil)
		}
		var at time.Time
		time.AfterFunc(500*time.Millisecond, func() { at = time.Now(); p.api.cancel() })
		p.run(t, datamove.Canceled)
		if took := time.Since(at); took > 8*time.Second {
			t.Errorf("%s: it took %s", name, took)
		}
		stop()
		if points := s.points(t); len(points) != 0 {
			t.Errorf("%s: %d restore points", name, len(points))
		}
	}
}

// newIssuer returns an issuer of certificates of an authority of its own.
func newIssuer(t *testing.T) *authority.Issuer {
	t.Helper()
	keeper := authority.NewKeeper(noStore{}, types.NamespacedName{Namespace: "varve", Name: "authority"}, clock.RealClock{})
	issuer, err := keeper.Issuer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return issuer
}

// noStore keeps nothing: each issuer has a new authority.
type noStore struct{ authority.Store }

func (noStore) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{}, "")
}

func (noStore) Create(context.Context, client.Object, ...client.CreateOption) error { return nil }

// A definition that a controller may make is one that a repository takes.
func TestDefinition_hasOneLimit(t *testing.T) {
	t.Parallel()
	if definition.MaxBytes > repository.MaxDefinitionBytes {
		t.Errorf("a definition may have %d bytes, and a repository takes %d", definition.MaxBytes,
			repository.MaxDefinitionBytes)
	}
}
