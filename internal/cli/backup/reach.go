package backup

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export/endpoint"
	"github.com/varvebackup/varve/internal/export/podspec"
)

// The ways to reach endpoints.
const (
	viaAuto    = "auto"
	viaDirect  = "direct"
	viaForward = "port-forward"
)

const (
	// lookupTime is how long to look for the address of a host before it has none.
	lookupTime = 5 * time.Second
	// accessAge is how old what the API server says may become: when the backup has ended, nobody needs to go on trying.
	accessAge = 5 * time.Second
)

// backupAccess is what opens the endpoints of one backup: it is read again now and then, because authorities rotate and
// backups end. It is safe for concurrent use.
type backupAccess struct {
	session *resource.Session
	client  *cluster.Client
	first   *backupv1.VirtualMachineBackup

	mu          sync.Mutex
	readAt      time.Time
	authorities []byte
	token       string
}

// newAccess reads what opens the endpoints of a backup.
func newAccess(ctx context.Context, s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup) (*backupAccess, error) {
	a := &backupAccess{session: s, client: c, first: b}
	return a, a.read(ctx)
}

// read reads the backup and its token. The caller holds mu, if there are others.
func (a *backupAccess) read(ctx context.Context) error {
	b, err := getBackup(ctx, a.client, a.first.Name)
	if err != nil {
		return err
	}
	if b.UID != a.first.UID {
		return errclass.Errorf(errclass.Expired, "backup %s was deleted", a.first.Name)
	}
	if err := checkAlive(a.session, b); err != nil {
		return err
	}
	var secret corev1.Secret
	key := client.ObjectKey{Namespace: b.Namespace, Name: tokenSecretOf(b)}
	if err := a.client.Get(ctx, key, &secret); err != nil {
		return fmt.Errorf("get the Secret with the token of backup %s: %w", b.Name, err)
	}
	token := string(secret.Data[podspec.TokenKey])
	if token == "" {
		return errclass.Errorf(errclass.Invalid, "Secret %s has no %s", key, podspec.TokenKey)
	}
	if b.Status.Cert != "" { // A backup that is not Ready for a moment may have none.
		a.authorities = []byte(b.Status.Cert)
	}
	a.token, a.readAt = token, a.session.Now()
	return nil
}

// tokenSecretOf returns the name of the Secret with a backup's token: that of its export, if it names none itself.
func tokenSecretOf(b *backupv1.VirtualMachineBackup) string {
	if b.Spec.TokenSecretRef != nil {
		return *b.Spec.TokenSecretRef
	}
	return podspec.TokenSecret(b.Status.ExportName)
}

// refresh reads again what has become old. While the API server does not answer, what it said before counts.
func (a *backupAccess) refresh(ctx context.Context) error {
	if a.session.Now().Sub(a.readAt) < accessAge {
		return nil
	}
	err := a.read(ctx)
	if class := cluster.Classify(err); err != nil && (class == cluster.Unreachable || class == cluster.Failure && errclass.Of(err) == errclass.None) && a.token != "" {
		return nil
	}
	return err
}

// Authorities returns who may have signed the certificate of the endpoints.
func (a *backupAccess) Authorities(ctx context.Context) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.refresh(ctx)
	return a.authorities, err
}

// Token returns what the endpoints demand.
func (a *backupAccess) Token(context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token, nil
}

// connectEndpoints returns a client of a backup's endpoints, and what ends it.
func connectEndpoints(ctx context.Context, s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup, via string) (*endpoint.Client, func(), error) {
	access, err := newAccess(ctx, s, c, b)
	if err != nil {
		return nil, nil, err
	}
	o := endpoint.Options{Authorities: access.Authorities, Token: access.Token}
	if via, err = chooseVia(ctx, b, via); err != nil {
		return nil, nil, err
	}
	closeForward := func() {}
	if via == viaForward {
		forward := c.Forward(c.Namespace, podspec.Pod(b.Status.ExportName), podspec.HTTPSPort)
		o.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return forward.Dial(ctx) }
		closeForward = forward.Close
	}
	endpoints := endpoint.New(o)
	return endpoints, func() { endpoints.Close(); closeForward() }, nil
}

// chooseVia returns how to reach the endpoints: as the user says, or directly if their host has an address here. Only the
// hosts of the export's own Service lead to its pod: a proxy has another certificate and other paths.
func chooseVia(ctx context.Context, b *backupv1.VirtualMachineBackup, asked string) (string, error) {
	u, err := url.Parse(b.Status.IncludedVolumes[0].DataEndpoint)
	if err != nil {
		return "", errclass.Errorf(errclass.Invalid, "%w", err)
	}
	inCluster := b.Status.ExportName != "" && slices.Contains(podspec.ServiceHosts(b.Namespace, b.Status.ExportName), u.Hostname())
	switch {
	case asked == viaDirect, asked == viaAuto && !inCluster:
		return viaDirect, nil
	case !inCluster:
		return "", errclass.Errorf(errclass.Invalid, "backup %s is served by %s, outside of the cluster: no port of a pod leads there", b.Name, u.Host)
	case asked == viaForward:
		return viaForward, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, u.Hostname()); err != nil {
		return viaForward, nil
	}
	return viaDirect, nil
}
