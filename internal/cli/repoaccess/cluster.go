package repoaccess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/session"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

// clusterLocation selects a repository by its location in a cluster.
type clusterLocation struct {
	name  string
	flags *genericclioptions.ConfigFlags
	// noPod: a location that takes a pod is not opened.
	noPod bool
}

func newClusterLocation() clusterLocation {
	return clusterLocation{flags: genericclioptions.NewConfigFlags(true)}
}

// addFlags adds --location, and kubectl's everyday flags. The others would mean two things in one command.
func (l *clusterLocation) addFlags(f *pflag.FlagSet) {
	f.StringVar(&l.name, "location", "", "open the repository in this location of the cluster, [NAMESPACE/]NAME, with the password and the keys that are there; --namespace says whose. For a claim or an NFS export, a pod serves it as long as the command runs")
	f.StringVarP(l.flags.Namespace, "namespace", "n", "", "with --location: the namespace whose volumes the repository has")
	f.StringVar(l.flags.KubeConfig, "kubeconfig", "", "with --location: the file that says how to reach the cluster")
	f.StringVar(l.flags.Context, "context", "", "with --location: the context of that file")
}

// isUsed says that the user selects a repository by its location.
func (l *clusterLocation) isUsed() bool { return l.name != "" }

// checkUnused refuses flags that need --location.
func (l *clusterLocation) checkUnused() error {
	if *l.flags.Namespace != "" || *l.flags.KubeConfig != "" || *l.flags.Context != "" {
		return failure.Usage("--namespace, --kubeconfig and --context need --location")
	}
	return nil
}

// errNeedsPod refuses a location that takes a pod to whoever is in a hurry.
var errNeedsPod = errors.New("only pods can reach the location")

// open opens the repository of the namespace in the location. What it returns shows no secret. Call done when the repository is closed.
// Later gone is told if the storage is gone for good.
func (l *clusterLocation) open(ctx context.Context, s *Session, gone context.CancelCauseFunc) (r *repository.Repository, done func(), err error) {
	c, err := cluster.Connect(l.flags, s.Streams.Err)
	if err != nil {
		return nil, nil, err
	}
	return l.openWith(ctx, s.Session, c, gone)
}

// WithLocation opens the repository of a client's namespace in a location of its cluster, [NAMESPACE/]NAME, calls f, and closes it, as
// WithRepository does.
func WithLocation(ctx context.Context, s *session.Session, c *cluster.Client, name string, f func(context.Context, *repository.Repository) error) error {
	l := clusterLocation{name: name}
	within, end := context.WithCancelCause(ctx)
	defer end(nil)
	r, done, err := l.openWith(ctx, s, c, end)
	if err != nil {
		return err
	}
	defer done()
	return explainEnd(ctx, within, useRepository(within, s, r, f))
}

// openWith is open with a client whose namespace selects the repository.
func (l *clusterLocation) openWith(ctx context.Context, s *session.Session, c *cluster.Client, gone context.CancelCauseFunc) (r *repository.Repository, done func(), err error) {
	found, err := FindLocation(ctx, c, l.name)
	if err != nil {
		return nil, nil, err
	}
	o, err := readAccess(ctx, s, c, found, c.Namespace)
	if err != nil {
		return nil, nil, err
	}
	locate, done := repositoryaccess.Locate, func() {}
	if o.place.S3 == nil {
		if l.noPod {
			return nil, nil, errNeedsPod
		}
		served, err := servePlace(ctx, s, c, found, o.place, o.access.Directory, gone)
		if err != nil {
			return nil, nil, explainEnd(ctx, ctx, err)
		}
		done = func() { served.Close(ctx) }
		locate = func(datamove.Access) repository.Location { return repository.Location{Served: served.blobs} }
	}
	r, err = repositoryaccess.NewStore(s.Now, locate).Open(ctx, o.access, repository.ConnectOptions{})
	if err != nil {
		done()
		return nil, nil, o.explain(ctx, found, c.Namespace, err)
	}
	return r, done, nil
}

// opening is what it takes to open a repository in a location. passwordSecret is the name of the Secret with its password.
type opening struct {
	place          location.Place
	access         datamove.Access
	passwordSecret string
}

// explain says why the repository of a namespace cannot be opened.
func (o *opening) explain(ctx context.Context, l *velerov1.BackupStorageLocation, volumeNamespace string, err error) error {
	secrets := &repositoryaccess.Secrets{}
	secrets.Hide(o.access.Secrets()...)
	err = &redactedError{text: fmt.Sprintf("the repository of namespace %s in location %s/%s: %s", volumeNamespace, l.Namespace, l.Name, secrets.Redact(err.Error())), err: err}
	if errors.Is(err, repository.ErrPassword) {
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "the password is in Secret " + layout.Namespace + "/" + o.passwordSecret + ": it is not the one that the repository was created with"}
	}
	if errors.Is(err, errclass.NotFound) && !errors.Is(err, repository.ErrNoBucket) {
		return notFound("`varve location describe "+l.Name+" -n "+l.Namespace+"` shows the namespaces that have one; -n selects it", "%w", err)
	}
	return Explain(failure.Interrupted(ctx, explainOpen(whyEnded(ctx, ctx, err)), "", ""))
}

func notFound(hint, format string, args ...any) error {
	return &failure.Error{Err: fmt.Errorf(format, args...), Code: errclass.ExitNotFound, Hint: hint}
}

// redactedError is an error without the secrets in its text.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }

// FindLocation returns a location by [NAMESPACE/]NAME. Without a namespace, it is in Varve's or in Velero's, and not in both.
func FindLocation(ctx context.Context, c *cluster.Client, name string) (*velerov1.BackupStorageLocation, error) {
	namespaces := []string{layout.Namespace, datamove.VeleroNamespace}
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		namespaces, name = []string{namespace}, rest
	}
	var found []*velerov1.BackupStorageLocation
	for _, namespace := range namespaces {
		l := &velerov1.BackupStorageLocation{}
		err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, l)
		if apierrors.IsNotFound(err) && len(namespaces) > 1 {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get location %s/%s: %w", namespace, name, err)
		}
		found = append(found, l)
	}
	switch len(found) {
	case 0:
		return nil, notFound("`varve location list -A` shows the locations", "there is no location %s in the namespaces %s", name, strings.Join(namespaces, " and "))
	case 1:
		return found[0], nil
	}
	return nil, failure.Usage("location %s is in the namespaces %s: give NAMESPACE/%s", name, strings.Join(namespaces, " and "), name)
}

// readAccess reads what it takes to open the repository of a namespace in a location.
func readAccess(ctx context.Context, s *session.Session, c *cluster.Client, l *velerov1.BackupStorageLocation, volumeNamespace string) (o opening, err error) {
	secrets := location.Secrets{}
	for _, name := range location.SecretNames(l) {
		data, err := readSecret(ctx, c, l.Namespace, name)
		if err != nil {
			return o, err
		}
		if data != nil {
			secrets[name] = data
		}
	}
	if o.place, err = location.Parse(l, secrets); err != nil {
		return o, fmt.Errorf("location %s/%s: %w", l.Namespace, l.Name, err)
	}
	o.access = o.place.Access(volumeNamespace)
	if o.access.S3 != nil {
		if err := useOwnKeys(s, l, o.access.S3); err != nil {
			return o, err
		}
	}
	key := client.ObjectKeyFromObject(l)
	var repo velerov1.BackupRepository
	err = c.Get(ctx, client.ObjectKey{Namespace: layout.Namespace, Name: datamove.RepositoryName(volumeNamespace, key)}, &repo)
	if client.IgnoreNotFound(err) != nil {
		return o, fmt.Errorf("get the BackupRepository of namespace %s: %w", volumeNamespace, err)
	}
	o.access.UniqueID = repo.Annotations[datamove.AnnotationUniqueID]
	o.passwordSecret, o.access.Password, err = FindPassword(ctx, c, key, volumeNamespace)
	return o, err
}

// useOwnKeys puts the user's keys in the place of those of a role, which only pods can take.
func useOwnKeys(s *session.Session, l *velerov1.BackupStorageLocation, bucket *datamove.S3Access) error {
	role := bucket.Role
	if role == nil {
		return nil
	}
	bucket.Role = nil
	bucket.AccessKey, bucket.SecretKey, bucket.SessionToken = s.Getenv("AWS_ACCESS_KEY_ID"), s.Getenv("AWS_SECRET_ACCESS_KEY"), s.Getenv("AWS_SESSION_TOKEN")
	if bucket.AccessKey == "" || bucket.SecretKey == "" {
		return failure.New("set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN to keys of yours that open the bucket",
			"location %s/%s is opened with %s, which only Varve's pods take", l.Namespace, l.Name, role)
	}
	return nil
}

// FindPassword returns the password of the repository of a namespace in a location, and the name of its Secret. With "" as namespace, it is
// the one that all namespaces share.
func FindPassword(ctx context.Context, c *cluster.Client, l datamove.Location, volumeNamespace string) (secret, password string, err error) {
	names := []string{datamove.LocationPasswordSecret(l)}
	if volumeNamespace != "" {
		names = append([]string{datamove.NamespacePasswordSecret(volumeNamespace, l)}, names...)
	}
	for _, name := range names {
		data, err := readSecret(ctx, c, layout.Namespace, name)
		if err != nil {
			return "", "", err
		}
		if p := string(bytes.TrimRight(data[datamove.PasswordKey], "\r\n")); p != "" {
			return name, p, nil
		}
	}
	return "", "", notFound("`varve location password import` brings it from another cluster", "there is no password of repositories in location %s: no Secret %s/%s", l, layout.Namespace, strings.Join(names, ", and no "+layout.Namespace+"/"))
}

// readSecret returns what is in a Secret; nil if there is none.
func readSecret(ctx context.Context, c *cluster.Client, namespace, name string) (map[string][]byte, error) {
	s := &corev1.Secret{}
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get Secret %s/%s: %w", namespace, name, err)
	case s.Data == nil:
		return nil, errors.New("Secret " + namespace + "/" + name + " is empty")
	}
	return s.Data, nil
}
