package pull

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"sync"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/tunnel"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
)

// ErrFarEnd means that there cannot be such a far end.
var ErrFarEnd = errclass.New(errclass.Invalid, "invalid far end of the tunnel")

// FarEnd is where the volumes of a backup are read.
type FarEnd struct {
	// Address is host:port.
	Address string
	// ServerName is what its certificate must be for.
	ServerName string
	// Authorities may have signed the certificate, in PEM.
	Authorities []byte
	// Token is what both sides prove to hold.
	Token []byte
}

// connection is the tunnel to a far end. It begins again when it breaks, until it is closed.
type connection struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	end FarEnd
}

// Connect offers the volumes to a far end until the backup ends, and replaces an earlier far end. The connection stays if
// only authorities or token differ: they count at the next dial. ErrFarEnd: the far end cannot be one. ErrNotServing: the
// backup does not serve its volumes.
func (j *Job) Connect(end FarEnd) error {
	if _, _, err := net.SplitHostPort(end.Address); err != nil || end.ServerName == "" || len(end.Token) == 0 {
		return ErrFarEnd
	}
	if !x509.NewCertPool().AppendCertsFromPEM(end.Authorities) {
		return ErrFarEnd
	}
	end.Authorities, end.Token = bytes.Clone(end.Authorities), bytes.Clone(end.Token)
	j.connecting.Lock()
	defer j.connecting.Unlock()
	if c := j.tunnel; c != nil {
		if now := c.farEnd(); now.Address == end.Address && now.ServerName == end.ServerName {
			c.mu.Lock()
			c.end = end
			c.mu.Unlock()
			return nil
		}
	}
	infos := j.Infos()
	if len(infos) == 0 || j.Snapshot().Phase != pb.Backup_SERVING {
		return ErrNotServing
	}
	j.closeTunnel()
	ctx, cancel := context.WithCancel(context.Background())
	c := &connection{cancel: cancel, done: make(chan struct{}), end: end}
	j.tunnel = c
	go func() {
		defer close(c.done)
		j.Guard(func() {
			err := tunnel.Run(ctx, tunnel.Config{
				Address: end.Address, ServerName: end.ServerName, BackupUID: j.UID(),
				CA: c.authorities, Token: func() ([]byte, error) { return c.farEnd().Token, nil },
				StateChanged: j.reportTunnel, Log: j.cfg.Log,
			}, j, infos)
			if err != nil {
				j.reportTunnel(tunnel.State{Err: err})
			}
		})
	}()
	return nil
}

func (c *connection) farEnd() FarEnd {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

func (c *connection) authorities() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.farEnd().Authorities) {
		return nil, ErrFarEnd
	}
	return pool, nil
}

func (j *Job) reportTunnel(s tunnel.State) {
	t := &pb.Tunnel{Connected: s.Connected, Sessions: s.Sessions}
	if s.Err != nil && !errors.Is(s.Err, context.Canceled) {
		t.Error = s.Err.Error()
	}
	j.UpdateState(func(b *pb.Backup) { b.Tunnel = t })
}

// disconnect ends the tunnel, and admits no other one.
func (j *Job) disconnect() {
	j.connecting.Lock()
	defer j.connecting.Unlock()
	j.closeTunnel()
}

// closeTunnel ends the tunnel if there is one. Whoever calls it has j.connecting.
func (j *Job) closeTunnel() {
	if j.tunnel == nil {
		return
	}
	j.tunnel.cancel()
	<-j.tunnel.done
	j.tunnel = nil
}
