package pull

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/tunnel"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// ErrFarEnd means that there cannot be such a far end.
var ErrFarEnd = errclass.New(errclass.Invalid, "invalid far end of the tunnel")

// FarEnd is where volumes of a backup are read.
type FarEnd struct {
	// Volume is the only volume that is offered there. Empty: all volumes are.
	Volume string
	// Address is host:port. Empty: nothing is offered any more.
	Address string
	// ServerName is what its certificate must be for.
	ServerName string
	// Authorities may have signed the certificate, in PEM.
	Authorities []byte
	// Token is what both sides prove to hold.
	Token []byte
}

// connection is the tunnel to a far end. It begins again when it breaks, until it is ended.
type connection struct {
	cancel context.CancelFunc
	// done is closed when it, and all connections that it replaced, have ended.
	done chan struct{}

	// Job.connecting guards what follows.

	end   FarEnd
	state tunnel.State
	// ended says that nobody wants it any more. What it still reports does not count.
	ended bool
}

// connections are the tunnels of a backup: one for each volume that has a far end of its own, and one, with an empty name, for
// all volumes. One that was ended stays until another replaces it: there are never more than volumes and one.
type connections struct {
	byVolume map[string]*connection
	// sessions and firstSessions are those of connections that were ended.
	sessions, firstSessions int64
}

// The tunnels of a backup share its limits, so that a launcher does not need more memory for many far ends than for one.
const (
	// mostReads is how many reads of volumes are in progress at once, over all tunnels.
	mostReads = 8
	// mostRequests is how many requests the tunnels for single volumes take together.
	mostRequests = 1024
)

// Connect offers volumes to a far end until the backup ends. It replaces an earlier far end of the same volume, or ends the
// offer if the address is empty. The connection stays if only authorities or token differ: they count at the next dial.
// It does not wait for a connection that ends. ErrFarEnd: the far end cannot be one, or the backup has no such volume.
// ErrNotServing: the backup does not serve its volumes.
func (j *Job) Connect(end FarEnd) error {
	if err := j.checkFarEnd(end); err != nil {
		return err
	}
	end.Authorities, end.Token = bytes.Clone(end.Authorities), bytes.Clone(end.Token)
	j.connecting.Lock()
	defer j.connecting.Unlock()
	previous := j.tunnels.byVolume[end.Volume]
	if end.Address == "" {
		j.endTunnel(previous)
		return nil
	}
	if previous != nil && !previous.ended && previous.end.Address == end.Address && previous.end.ServerName == end.ServerName {
		previous.end = end
		return nil
	}
	infos := j.Infos()
	if len(infos) == 0 || j.Snapshot().Phase != pb.Backup_SERVING {
		return ErrNotServing
	}
	j.endTunnel(previous)
	j.startTunnel(end, infos, previous)
	return nil
}

func (j *Job) checkFarEnd(end FarEnd) error {
	if end.Volume != "" && !slices.ContainsFunc(j.req.Volumes, func(v *pb.BackupVolume) bool { return v.Volume == end.Volume }) {
		return fmt.Errorf("%w: the backup has no volume %q", ErrFarEnd, end.Volume)
	}
	if end.Address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(end.Address); err != nil || end.ServerName == "" || len(end.Token) == 0 {
		return ErrFarEnd
	}
	if !x509.NewCertPool().AppendCertsFromPEM(end.Authorities) {
		return ErrFarEnd
	}
	return nil
}

// startTunnel starts a connection that begins when the one that it replaces, if any, has ended. Whoever calls it has
// j.connecting.
func (j *Job) startTunnel(end FarEnd, infos []export.Info, replaces *connection) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &connection{cancel: cancel, done: make(chan struct{}), end: end}
	if j.tunnels.byVolume == nil {
		j.tunnels.byVolume = map[string]*connection{}
	}
	j.tunnels.byVolume[end.Volume] = c
	j.publishTunnels()
	cfg := tunnel.Config{
		Address: end.Address, ServerName: end.ServerName, BackupUID: j.UID(), Workers: mostReads,
		CA:           func() (*x509.CertPool, error) { return authorities(j.farEnd(c)) },
		Token:        func() ([]byte, error) { return j.farEnd(c).Token, nil },
		StateChanged: func(s tunnel.State) { j.reportTunnel(c, s) }, Log: j.cfg.Log,
	}
	var volumes export.Volumes = j
	if end.Volume != "" {
		// Each gets its share, so that a far end that stalls leaves workers to the others.
		cfg.Workers, cfg.Requests = max(1, mostReads/len(j.req.Volumes)), max(1, mostRequests/len(j.req.Volumes))
		volumes = oneVolume{job: j, name: end.Volume}
		infos = slices.DeleteFunc(infos, func(i export.Info) bool { return i.Name != end.Volume })
	}
	go func() {
		defer close(c.done)
		if replaces != nil {
			<-replaces.done
		}
		j.Guard(func() {
			if err := tunnel.Run(ctx, cfg, volumes, infos); err != nil {
				j.reportTunnel(c, tunnel.State{Err: err})
			}
		})
	}()
}

// oneVolume is what the far end of a single volume reaches of a backup.
type oneVolume struct {
	job  *Job
	name string
}

// Open implements export.Volumes.
func (o oneVolume) Open(ctx context.Context, name string) (export.Volume, error) {
	if name != o.name {
		return nil, errclass.Errorf(errclass.NotFound, "volume %s is not offered here", name)
	}
	return o.job.Open(ctx, name)
}

func (j *Job) farEnd(c *connection) FarEnd {
	j.connecting.Lock()
	defer j.connecting.Unlock()
	return c.end
}

func authorities(end FarEnd) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(end.Authorities) {
		return nil, ErrFarEnd
	}
	return pool, nil
}

func (j *Job) reportTunnel(c *connection, s tunnel.State) {
	j.connecting.Lock()
	defer j.connecting.Unlock()
	if !c.ended {
		c.state = s
		j.publishTunnels()
	}
}

// publishTunnels writes what the far ends have in common into the backup's state. Whoever calls it has j.connecting.
func (j *Job) publishTunnels() {
	t := &pb.Tunnel{Sessions: j.tunnels.sessions, FirstSessions: j.tunnels.firstSessions}
	live, connected := 0, 0
	count := func(volume string) {
		c := j.tunnels.byVolume[volume]
		if c == nil || c.ended {
			return
		}
		live++
		if c.state.Connected {
			connected++
		}
		t.Sessions += c.state.Sessions
		t.FirstSessions += min(1, c.state.Sessions)
		if err := c.state.Err; err != nil && !errors.Is(err, context.Canceled) && t.Error == "" {
			t.Error = err.Error()
			if volume != "" {
				t.Error = "volume " + volume + ": " + t.Error
			}
		}
	}
	count("")
	for _, v := range j.req.Volumes {
		count(v.Volume)
	}
	t.Connected = live > 0 && connected == live
	j.UpdateState(func(b *pb.Backup) { b.Tunnel = t })
}

// endTunnel ends a connection, without waiting for its end. Whoever calls it has j.connecting.
func (j *Job) endTunnel(c *connection) {
	if c == nil || c.ended {
		return
	}
	c.ended = true
	c.cancel()
	j.tunnels.sessions += c.state.Sessions
	j.tunnels.firstSessions += min(1, c.state.Sessions)
	j.publishTunnels()
}

// disconnect ends all tunnels and waits for their end. Whoever calls it sees to it that there are no other ones: the volumes
// are closed. It waits without j.connecting, which a connection may need for its end.
func (j *Job) disconnect() {
	j.connecting.Lock()
	all := make([]*connection, 0, len(j.tunnels.byVolume))
	for _, c := range j.tunnels.byVolume {
		j.endTunnel(c)
		all = append(all, c)
	}
	j.connecting.Unlock()
	for _, c := range all {
		<-c.done
	}
}
