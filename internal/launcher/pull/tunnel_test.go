package pull

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/launcher/backupjob"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/test/authority"
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
		t.Errorf("volume %s at the far end differs: %v", name, err)
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
