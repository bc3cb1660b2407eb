package pull

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/authority"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// farEnd is an export pod.
type farEnd struct {
	*tunnel.Server

	End FarEnd
}

func newFarEnd(t *testing.T, uid string) *farEnd {
	t.Helper()
	ca := authority.New(t)
	authorities, err := os.ReadFile(filepath.Join(ca.Files(t), "ca-cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	config := ca.Server.Clone()
	config.ClientAuth = tls.NoClientCert
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	token := tunnel.Token([]byte("the installation's"), uid)
	f := &farEnd{
		Server: &tunnel.Server{TLS: config, BackupUID: uid, Token: func() ([]byte, error) { return token, nil }},
		End:    FarEnd{Address: listener.Addr().String(), ServerName: "localhost", Authorities: authorities, Token: token},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return f
}

// wantVolume reads a volume at the far end and compares it.
func (f *farEnd) wantVolume(t *testing.T, b *bench, name string) {
	t.Helper()
	v, err := f.Open(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, v.Info().Bytes)
	err = v.Read(t.Context(), extent.Extent{Length: v.Info().Bytes}, export.Everything, func(c export.Chunk) error {
		copy(got[c.Offset:c.End()], c.Data)
		return nil
	})
	if err != nil || !bytes.Equal(got, b.volumes[name].Content) {
		verdict.JudgeErrorf(t, err == nil, "volume %s at the far end differs: %v", name, err)
	}
}

func TestConnect_offersTheVolumesUntilTheEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var j *Job
	serving := make(chan struct{})
	b.whenServing(&j, func(*Job) { close(serving) })
	j = b.job()
	first, second := newFarEnd(t, j.UID()), newFarEnd(t, j.UID())
	if err := j.Connect(first.End); !errors.Is(err, ErrNotServing) {
		t.Errorf("connected before it serves: %v", err)
	}
	ended := make(chan *pb.Backup, 1)
	go func() { ended <- b.run(j) }()
	<-serving

	for name, wrong := range map[string]FarEnd{
		"address":     {Address: "nowhere", ServerName: "localhost", Authorities: first.End.Authorities, Token: first.End.Token},
		"name":        {Address: first.End.Address, Authorities: first.End.Authorities, Token: first.End.Token},
		"authorities": {Address: first.End.Address, ServerName: "localhost", Authorities: []byte("none"), Token: first.End.Token},
		"token":       {Address: first.End.Address, ServerName: "localhost", Authorities: first.End.Authorities},
	} {
		if err := j.Connect(wrong); !errors.Is(err, errclass.Invalid) {
			t.Errorf("a far end with a wrong %s: %v", name, err)
		}
	}

	// A token that is wrong at first, as when a secret arrives late.
	early := first.End
	early.Token = []byte("another")
	for _, end := range []FarEnd{early, first.End, first.End} {
		if err := j.Connect(end); err != nil {
			t.Fatal(err)
		}
	}
	connected := func() bool { return j.Snapshot().GetTunnel().GetConnected() }
	wait.Until(t, time.Minute, "the tunnel", func() bool { return connected() && first.Connected() })
	if infos, err := first.List(); err != nil || len(infos) != 2 || infos[1].PointInTime != "u2/data" || !infos[1].Incremental {
		t.Errorf("offered %+v: %v", infos, err)
	}
	first.wantVolume(t, b, "root")
	first.wantVolume(t, b, "data")
	if got := first.Counters().Sessions; got != 1 {
		t.Errorf("%d sessions, although nothing but the token was new", got)
	}

	// The export pod is another one.
	if err := j.Connect(second.End); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the second far end", func() bool { return second.Connected() && !first.Connected() && connected() })
	second.wantVolume(t, b, "data")

	if err := j.Finish(); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.Phase != pb.Backup_DONE || got.Tunnel.GetConnected() {
		t.Errorf("%v", got)
	}
	wait.Until(t, time.Minute, "the far end to notice", func() bool { return !second.Connected() })
	if err := j.Connect(second.End); !errors.Is(err, ErrNotServing) {
		t.Errorf("connected after the end: %v", err)
	}
}

// servingJob returns a job that serves, and where its end arrives.
func servingJob(b *bench) (*Job, <-chan *pb.Backup) {
	b.Helper()
	var j *Job
	serving := make(chan struct{})
	b.whenServing(&j, func(*Job) { close(serving) })
	j = b.job()
	ended := make(chan *pb.Backup, 1)
	go func() { ended <- b.run(j) }()
	<-serving
	return j, ended
}

// offered connects a far end with one volume.
func (f *farEnd) offered(t *testing.T, j *Job, volume string) {
	t.Helper()
	end := f.End
	end.Volume = volume
	if err := j.Connect(end); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the far end of "+volume, f.Connected)
}

// wantOnly checks that the far end has one volume and no other.
func (f *farEnd) wantOnly(t *testing.T, b *bench, volume, other string) {
	t.Helper()
	if infos, err := f.List(); err != nil || len(infos) != 1 || infos[0].Name != volume {
		t.Errorf("the far end of %s has %+v: %v", volume, infos, err)
	}
	if _, err := f.Open(t.Context(), other); !errors.Is(err, errclass.NotFound) {
		t.Errorf("the far end of %s opens %s: %v", volume, other, err)
	}
	f.wantVolume(t, b, volume)
}

func TestConnect_offersEachVolumeToItsFarEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j, ended := servingJob(b)
	root, data, next := newFarEnd(t, j.UID()), newFarEnd(t, j.UID()), newFarEnd(t, j.UID())
	root.offered(t, j, "root")
	data.offered(t, j, "data")
	root.wantOnly(t, b, "root", "data")
	data.wantOnly(t, b, "data", "root")
	if _, err := (oneVolume{job: j, name: "root"}).Open(t.Context(), "data"); !errors.Is(err, errclass.NotFound) {
		t.Errorf("another volume: %v", err)
	}

	// One far end is replaced, and leaves the other as it is.
	next.offered(t, j, "data")
	wait.Until(t, time.Minute, "the first far end of data to end", func() bool { return !data.Connected() })
	next.wantOnly(t, b, "data", "root")
	root.wantOnly(t, b, "root", "data")
	// One that has all volumes is beside them.
	all := newFarEnd(t, j.UID())
	all.offered(t, j, "")
	all.wantVolume(t, b, "root")
	all.wantVolume(t, b, "data")

	// One that ends leaves the others as they are. To end it again changes nothing.
	for range 2 {
		if err := j.Connect(FarEnd{Volume: "data"}); err != nil {
			t.Fatal(err)
		}
	}
	wait.Until(t, time.Minute, "the far end of data to end", func() bool { return !next.Connected() })
	root.wantOnly(t, b, "root", "data")
	if err := j.Connect(FarEnd{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the far end of all to end", func() bool { return !all.Connected() })
	if n := len(j.tunnels.byVolume); n != 3 {
		t.Errorf("%d connections are known, of two volumes and all", n)
	}
	// It may come back.
	next.offered(t, j, "data")
	if got := root.Counters().Sessions; got != 1 {
		t.Errorf("%d sessions of the far end that was left alone", got)
	}

	if err := j.Finish(); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.Phase != pb.Backup_DONE || got.Tunnel.GetConnected() || got.Tunnel.GetError() != "" {
		t.Errorf("%v", got)
	}
	wait.Until(t, time.Minute, "all far ends to notice", func() bool { return !root.Connected() && !next.Connected() })
	if err := j.Connect(root.End); !errors.Is(err, ErrNotServing) {
		t.Errorf("connected after the end: %v", err)
	}
}

func TestConnect_namesAnUnknownVolume(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j, ended := servingJob(b)
	end := newFarEnd(t, j.UID()).End
	for _, end.Volume = range []string{"other", "root/../data"} {
		for _, end.Address = range []string{end.Address, ""} {
			if err := j.Connect(end); !errors.Is(err, ErrFarEnd) || !errors.Is(err, errclass.Invalid) || !strings.Contains(err.Error(), end.Volume) {
				t.Errorf("%+v: %v", end, err)
			}
		}
	}
	if len(j.tunnels.byVolume) > 0 || j.Snapshot().Tunnel != nil {
		t.Errorf("connections %v, tunnel %v", j.tunnels.byVolume, j.Snapshot().Tunnel)
	}
	j.Fail(backupjob.Aborted())
	<-ended
}

// The state of several far ends is one message.
func TestConnect_reportsAllFarEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j, ended := servingJob(b)
	want := func(what string, connected bool, sessions, first int64, says string) {
		t.Helper()
		var got *pb.Tunnel
		wait.Until(t, time.Minute, what, func() bool {
			got = j.Snapshot().Tunnel
			return got.GetConnected() == connected && got.GetSessions() == sessions && got.GetFirstSessions() == first &&
				(got.GetError() == "") == (says == "") && strings.HasPrefix(got.GetError(), says)
		})
	}
	root, data, wrong := newFarEnd(t, j.UID()), newFarEnd(t, j.UID()), newFarEnd(t, j.UID())
	wrong.End.Token = []byte("another")
	root.offered(t, j, "root")
	want("one far end", true, 1, 1, "")
	wrong.End.Volume = "data"
	if err := j.Connect(wrong.End); err != nil {
		t.Fatal(err)
	}
	want("one that refuses", false, 1, 1, "volume data: ")
	data.offered(t, j, "data")
	want("another one in its place", true, 2, 2, "")
	// The first error in the order of the volumes is told. All volumes come first, and have no name.
	for _, wrong.End.Volume = range []string{"data", "root"} {
		if err := j.Connect(wrong.End); err != nil {
			t.Fatal(err)
		}
	}
	want("both refuse", false, 2, 2, "volume root: ")
	if err := j.Connect(FarEnd{Volume: "root"}); err != nil {
		t.Fatal(err)
	}
	want("the other error", false, 2, 2, "volume data: ")
	wrong.End.Volume = ""
	if err := j.Connect(wrong.End); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the error of all", func() bool {
		told := j.Snapshot().Tunnel.GetError()
		return told != "" && !strings.HasPrefix(told, "volume ")
	})
	for _, volume := range []string{"", "data"} {
		if err := j.Connect(FarEnd{Volume: volume}); err != nil {
			t.Fatal(err)
		}
	}
	want("no far end", false, 2, 2, "")
	root.offered(t, j, "root")
	want("a far end again", true, 3, 3, "")
	if err := j.Finish(); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.Tunnel.GetSessions() != 3 {
		t.Errorf("%v", got.Tunnel)
	}
}

// stuck is a volume whose reads do not heed the end of their context.
type stuck struct {
	*served

	begun chan struct{}
	ends  chan struct{}
}

func (s stuck) Read(context.Context, extent.Extent, export.Scope, func(export.Chunk) error) error {
	s.begun <- struct{}{}
	<-s.ends
	return errors.New("stuck")
}

// A read that does not end keeps neither its far end from being replaced nor those of other volumes from being told.
func TestConnect_doesNotWaitForReads(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j, ended := servingJob(b)
	volume := stuck{served: b.volumes["data"], begun: make(chan struct{}), ends: make(chan struct{})}
	j.mu.Lock()
	j.volumes["data"] = volume
	j.mu.Unlock()
	data, root, next := newFarEnd(t, j.UID()), newFarEnd(t, j.UID()), newFarEnd(t, j.UID())
	data.offered(t, j, "data")
	v, err := data.Open(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		read <- v.Read(context.WithoutCancel(t.Context()), extent.Extent{Length: 4096}, export.Everything, func(export.Chunk) error { return nil })
	}()
	<-volume.begun
	again := next.End
	again.Volume = "data"
	if err := j.Connect(again); err != nil {
		t.Fatal(err)
	}
	root.offered(t, j, "root")
	root.wantVolume(t, b, "root")
	if err := <-read; !errors.Is(err, errclass.Transient) {
		t.Errorf("the read of the far end that was replaced: %v", err)
	}
	if next.Connected() {
		t.Error("the next far end of data is connected while the one before it reads")
	}
	close(volume.ends)
	wait.Until(t, time.Minute, "the next far end of data", next.Connected)
	j.Fail(backupjob.Aborted())
	<-ended
}

// However many far ends read, a launcher has the memory of a few reads.
func TestReads_areLimitedOverAllFarEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		j, ended := servingJob(b)
		volume := stuck{served: b.volumes["data"], begun: make(chan struct{}, 100), ends: make(chan struct{})}
		j.mu.Lock()
		j.volumes["data"] = volume
		j.mu.Unlock()
		v, err := j.Open(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan error, 100)
		for range 3 * mostReads {
			go func() {
				refused <- v.Read(ctx, extent.Extent{Length: 4096}, export.Everything, func(export.Chunk) error { return nil })
			}()
		}
		synctest.Wait()
		if n := len(volume.begun); n != mostReads {
			t.Errorf("%d reads are in progress", n)
		}
		cancel()
		synctest.Wait()
		if n := len(refused); n != 2*mostReads {
			t.Errorf("%d reads that waited have ended", n)
		}
		close(volume.ends)
		j.Fail(backupjob.Aborted())
		<-ended
	})
}

// What the far end reads does not keep a backup from failing.
func TestConnect_endsWithTheBackup(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var j *Job
	serving := make(chan struct{})
	b.whenServing(&j, func(*Job) { close(serving) })
	j = b.job()
	end := newFarEnd(t, j.UID())
	ended := make(chan *pb.Backup, 1)
	go func() { ended <- b.run(j) }()
	<-serving
	if err := j.Connect(end.End); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := end.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	v, err := end.Open(ctx, "root")
	if err != nil {
		t.Fatal(err)
	}
	stopped := errors.New("stopped")
	err = v.Read(ctx, extent.Extent{Length: v.Info().Bytes}, export.Everything, func(export.Chunk) error {
		j.Fail(backupjob.Aborted())
		if got := <-ended; got.Failure != pb.Backup_ABORTED {
			t.Errorf("%v", got)
		}
		return stopped
	})
	if !errors.Is(err, stopped) {
		t.Error(err)
	}
	if _, err := end.Open(t.Context(), "root"); err != nil && !errors.Is(err, errclass.Transient) {
		t.Errorf("after the end: %v", err)
	}
}
