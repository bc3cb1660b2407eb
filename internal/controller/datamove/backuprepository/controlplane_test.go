//go:build controlplane

package backuprepository

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/controller/datamove/storagepod/storagepodtest"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) {
	storage.Register()
	controlplane.Main(m, &cluster)
}

const (
	accessKey, secretKey = "AKIDTESTONLY", "s3cr3tTESTONLY"
)

// TestControlPlane runs every test that needs the API server.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*world){
		"made once, and again after a restart": madeOnce,
		"a name that does not match":           foreignName,
		"the password is lost":                 lostPassword,
		"another cluster's repository":         anotherClusters,
		"unreachable, and back":                unreachable,
		"replaced, and gone":                   replaced,
		"keys are rotated":                     rotatedKeys,
		"the location is deleted":              deletedLocation,
		"maintenance":                          maintained,
		"a password for each namespace":        passwordForEach,
		"the controller's own rights":          ownRights,
		"a claim":                              inAClaim,
		"a claim, read-only":                   inAReadOnlyClaim,
		"a role":                               byARole,
		"from a catalogue":                     fromACatalogue,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, cluster.Namespace(t))
			test(w)
			w.noSecretsAnywhere()
		})
	}
}

// world is one test: Varve's namespace, a namespace with a location, and a directory that stands for its bucket.
type world struct {
	*testing.T
	ns, velero, dir string
	admin           client.Client
	clock           *testclock.FakePassiveClock
	store           *directories
	perNamespace    bool
	stop            func()
	secrets         []string
}

func newWorld(t *testing.T, ns string) *world {
	t.Helper()
	w := &world{
		T: t, ns: ns, velero: cluster.Namespace(t), dir: t.TempDir(), admin: cluster.Client(t, controlplane.Admin), clock: testclock.NewFakePassiveClock(time.Now()),
		secrets: []string{accessKey, secretKey},
	}
	w.store = &directories{Store: repositoryaccess.NewStore(time.Now, func(a datamove.Access) repository.Location {
		return repository.Location{Directory: filepath.Join(w.dir, a.S3.Bucket, a.S3.Prefix)}
	})}
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "keys"},
		StringData: map[string]string{"cloud": "[default]\naws_access_key_id=" + accessKey + "\naws_secret_access_key=" + secretKey + "\n"},
	})
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}}
	l.Spec.Provider, l.Spec.Credential = "aws", &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "cloud"}
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "b"}
	w.create(l)
	return w
}

// directories are the storages of tests: a directory for each bucket. It stands for S3, and can fail.
type directories struct {
	*repositoryaccess.Store

	mu      sync.Mutex
	failure error
	keys    string

	looks sync.RWMutex // held by who is in a repository
}

// fail makes every access fail with err; nil: no longer.
func (d *directories) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failure = err
}

func (d *directories) Try(ctx context.Context, root datamove.Access, write bool) error {
	d.mu.Lock()
	failure, keys := d.failure, d.keys
	d.mu.Unlock()
	if keys != "" && root.S3.SecretKey != keys {
		failure = repository.ErrPassword // any error of class Denied
	}
	if failure != nil {
		return fmt.Errorf("%w with %s and %s", failure, root.S3.SecretKey, root.S3.AccessKey)
	}
	return d.Store.Try(ctx, root, write)
}

func (d *directories) Check(ctx context.Context, a datamove.Access) error {
	d.mu.Lock()
	failure := d.failure
	d.mu.Unlock()
	if failure != nil {
		return failure
	}
	d.looks.RLock()
	defer d.looks.RUnlock()
	return d.Store.Check(ctx, a)
}

func (d *directories) Prepare(ctx context.Context, a datamove.Access, lock location.Lock) (uniqueID string, err error) {
	d.looks.RLock()
	defer d.looks.RUnlock()
	return d.Store.Prepare(ctx, a, lock)
}

// alone calls change while nobody is in a repository. Who looks at one that goes makes a file there again (kopia's .shards).
func (d *directories) alone(change func() error) error {
	d.looks.Lock()
	defer d.looks.Unlock()
	return change()
}

func (w *world) start(user controlplane.User) {
	w.Helper()
	mgr := cluster.Manager(w.T, user, func(o *ctrl.Options) { o.Cache.ByObject = CachedObjects(w.ns) })
	err := Setup(mgr, Options{
		Namespace: w.ns, Image: datamove.PodImage{Name: "varve:test"}, Stores: w.store, Clock: w.clock,
		Namespaces:           func(context.Context) ([]string, error) { return []string{w.ns, w.velero}, nil },
		PasswordPerNamespace: func(context.Context) (bool, error) { return w.perNamespace, nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(w.Context(), o); err != nil {
		w.Fatal(err)
	}
}

func (w *world) at() datamove.Location {
	return datamove.Location{Namespace: w.velero, Name: "default"}
}

// repository makes a BackupRepository, as handlers do.
func (w *world) repository(namespace string) *velerov1.BackupRepository {
	w.Helper()
	repo := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: datamove.RepositoryName(namespace, w.at())}}
	repo.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: namespace, BackupStorageLocation: "default", RepositoryType: "kopia",
		RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: w.velero},
	}
	w.create(repo)
	return repo
}

// becomes waits for a phase and a message, and nudges the controller: its clock stands still.
func (w *world) becomes(repo *velerov1.BackupRepository, phase velerov1.BackupRepositoryPhase, says string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error { return w.is(repo, phase, says) })
}

func (w *world) is(repo *velerov1.BackupRepository, phase velerov1.BackupRepositoryPhase, says string) error {
	if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(repo), repo); err != nil {
		return err
	}
	if repo.Status.Phase != phase || !strings.Contains(repo.Status.Message, says) {
		return fmt.Errorf("%s %q, want %s %q", repo.Status.Phase, repo.Status.Message, phase, says)
	}
	return nil
}

// later moves the clock, and has the controller look at a repository.
func (w *world) later(d time.Duration, repo *velerov1.BackupRepository) {
	w.Helper()
	w.clock.SetTime(w.clock.Now().Add(d))
	controlplane.Update(w.T, w.admin, repo, false, func(r *velerov1.BackupRepository) {
		metav1.SetMetaDataAnnotation(&r.ObjectMeta, "test", w.clock.Now().String())
	})
}

// becomesLater moves the clock until a repository has a phase and a message: the answer of a look that was under way may be an old one.
func (w *world) becomesLater(d time.Duration, repo *velerov1.BackupRepository, phase velerov1.BackupRepositoryPhase, says string) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		w.later(d, repo)
		return w.is(repo, phase, says)
	})
}

func (w *world) secret(name string) *corev1.Secret {
	w.Helper()
	s := &corev1.Secret{}
	if err := w.admin.Get(w.Context(), types.NamespacedName{Namespace: w.ns, Name: name}, s); err != nil {
		w.Fatal(err)
	}
	if password := string(s.Data[datamove.PasswordKey]); password != "" {
		w.secrets = append(w.secrets, password)
	}
	return s
}

// access waits for the repository's Secret, and returns what it has.
func (w *world) access(repo *velerov1.BackupRepository, ok func(datamove.Access) bool) datamove.Access {
	w.Helper()
	var a datamove.Access
	controlplane.Eventually(w.T, func() error {
		s := &corev1.Secret{}
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(repo), s); err != nil {
			return err
		}
		var err error
		if a, err = datamove.DecodeAccess(s.Data[datamove.AccessKey]); err != nil {
			return err
		}
		if ok != nil && !ok(a) {
			return errors.New("the access is still the old one")
		}
		return nil
	})
	w.secrets = append(w.secrets, a.Password)
	return a
}

// noSecretsAnywhere looks for keys and passwords wherever the controller writes but in Secrets.
func (w *world) noSecretsAnywhere() {
	w.Helper()
	repos, events, jobs := &velerov1.BackupRepositoryList{}, &eventsv1.EventList{}, &batchv1.JobList{}
	for _, list := range []client.ObjectList{repos, events, jobs} {
		if err := w.admin.List(w.Context(), list, client.InNamespace(w.ns)); err != nil {
			w.Fatal(err)
		}
		text, err := yaml.Marshal(list)
		if err != nil {
			w.Fatal(err)
		}
		for _, secret := range w.secrets {
			if secret != "" && strings.Contains(string(text), secret) {
				w.Errorf("%T has a secret: %s", list, text)
			}
		}
	}
}

const isReady, isNotReady = velerov1.RepositoryReady, velerov1.RepositoryNotReady

func madeOnce(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	a := w.access(repo, nil)
	password := w.secret(datamove.LocationPasswordSecret(w.at()))
	if string(password.Data[datamove.PasswordKey]) != a.Password || len(a.Password) < 43 || a.UniqueID == "" || a.UniqueID != repo.Annotations[datamove.AnnotationUniqueID] {
		w.Error("the access is not the repository's")
	}
	if a.S3.Prefix != "plugins/varve/shop/" || a.S3.SecretKey != secretKey {
		w.Errorf("prefix %s", a.S3.Prefix)
	}
	other := w.repository("bank")
	w.becomes(other, isReady, "")
	if b := w.access(other, nil); b.Password != a.Password || b.UniqueID == a.UniqueID {
		w.Error("repositories of one location share a password, and nothing else")
	}
	// The Secret that mover pods mount comes back, and so does a restarted controller.
	w.stop()
	if err := w.admin.Delete(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: repo.Name}}); err != nil {
		w.Fatal(err)
	}
	w.start(controlplane.Controller)
	if again := w.access(repo, nil); again.UniqueID != a.UniqueID || again.Password != a.Password {
		w.Error("after a restart the access is another one")
	}
}

func foreignName(w *world) {
	w.start(controlplane.Controller)
	repo := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "mine"}}
	repo.Spec = velerov1.BackupRepositorySpec{VolumeNamespace: "shop", BackupStorageLocation: "default", RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: w.velero}}
	w.create(repo)
	w.becomes(repo, isNotReady, "the name does not match the spec")
	if entries, err := os.ReadDir(w.dir); err != nil || len(entries) > 0 {
		w.Errorf("something was done: %v %v", entries, err)
	}
}

// Nobody makes a new password for a repository that exists. With the old one, it is Ready again.
func lostPassword(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	id := repo.Annotations[datamove.AnnotationUniqueID]
	name := datamove.LocationPasswordSecret(w.at())
	saved := w.secret(name)
	if err := w.admin.Delete(w.Context(), saved); err != nil {
		w.Fatal(err)
	}
	w.later(checkEvery, repo)
	w.becomes(repo, isNotReady, "put it into the key password of Secret "+w.ns+"/"+name)
	other := w.repository("bank")
	w.becomes(other, isNotReady, "its password is not here")
	// The same with nothing but what is in the bucket.
	for _, r := range []*velerov1.BackupRepository{repo, other} {
		if err := w.admin.Delete(w.Context(), r); err != nil {
			w.Fatal(err)
		}
	}
	repo, other = w.repository("shop"), w.repository("bank")
	for _, r := range []*velerov1.BackupRepository{repo, other} {
		w.becomes(r, isNotReady, "of namespace shop), and its password is not here")
	}
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}, StringData: map[string]string{datamove.PasswordKey: "wrong"}})
	w.later(lookEvery, repo)
	w.becomes(repo, isNotReady, "the password does not open the repository")
	// With a wrong password no other repository is made either.
	w.later(lookEvery, other)
	w.becomes(other, isNotReady, "the password does not open the repository")
	controlplane.Update(w.T, w.admin, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}, false, func(s *corev1.Secret) { s.Data = saved.Data })
	w.later(lookEvery, repo)
	w.becomes(repo, isReady, "")
	if repo.Annotations[datamove.AnnotationUniqueID] != id {
		w.Error("it is another repository")
	}
	w.later(lookEvery, other)
	w.becomes(other, isReady, "")
}

// A repository of another cluster is connected to when its password is there before.
func anotherClusters(w *world) {
	prefix := datamove.RepositoryPrefix("", "shop")
	theirs := repository.Location{Directory: filepath.Join(w.dir, "b", prefix)}
	if err := repository.Create(w.Context(), theirs, "theirs", repository.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: datamove.LocationPasswordSecret(w.at())}, StringData: map[string]string{datamove.PasswordKey: "theirs\n"},
	})
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	if a := w.access(repo, nil); a.Password != "theirs" {
		w.Error("another password")
	}
}

func unreachable(w *world) {
	w.store.fail(repository.ErrUnreachable)
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isNotReady, "does not answer")
	w.store.fail(nil)
	w.later(lastRetry, repo)
	w.becomes(repo, isReady, "")
	w.store.fail(repository.ErrUnreachable)
	w.later(checkEvery, repo)
	w.becomes(repo, isNotReady, "does not answer")
	if a := w.access(repo, nil); a.UniqueID == "" {
		w.Error("movers lose their access while the storage is away")
	}
	w.store.fail(nil)
	w.later(lastRetry, repo)
	w.becomes(repo, isReady, "")
}

func replaced(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	place, kept := filepath.Join(w.dir, "b", datamove.RepositoryPrefix("", "shop")), filepath.Join(w.dir, "kept")
	if err := w.store.alone(func() error { return os.Rename(place, kept) }); err != nil {
		w.Fatal(err)
	}
	w.becomesLater(checkEvery, repo, isNotReady, "")
	w.becomesLater(lastRetry, repo, isNotReady, "any more")
	if _, err := os.Stat(filepath.Join(place, "kopia.repository.f")); err == nil {
		w.Error("an empty repository was made in its place")
	}
	password := string(w.secret(datamove.LocationPasswordSecret(w.at())).Data[datamove.PasswordKey])
	if err := w.store.alone(func() error {
		return errors.Join(os.RemoveAll(place), repository.Create(w.Context(), repository.Location{Directory: place}, password, repository.CreateOptions{}))
	}); err != nil {
		w.Fatal(err)
	}
	w.becomesLater(lastRetry, repo, isNotReady, "another repository has taken the place")
	if err := w.store.alone(func() error { return errors.Join(os.RemoveAll(place), os.Rename(kept, place)) }); err != nil {
		w.Fatal(err)
	}
	w.becomesLater(lastRetry, repo, isReady, "")
}

func rotatedKeys(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	w.access(repo, func(a datamove.Access) bool { return a.S3.SecretKey == secretKey })
	w.secrets = append(w.secrets, "rotatedKEY")
	w.store.mu.Lock()
	w.store.keys = "rotatedKEY"
	w.store.mu.Unlock()
	keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "keys"}}
	controlplane.Update(w.T, w.admin, keys, false, func(s *corev1.Secret) {
		s.Data["cloud"] = []byte(strings.ReplaceAll(string(s.Data["cloud"]), secretKey, "rotatedKEY"))
	})
	w.later(lookEvery, repo)
	w.access(repo, func(a datamove.Access) bool { return a.S3.SecretKey == "rotatedKEY" })
	w.becomes(repo, isReady, "")
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}}
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		l.Spec.Config = map[string]string{"s3Url": "https://elsewhere:9000"}
	})
	w.access(repo, func(a datamove.Access) bool { return a.S3.Endpoint == "elsewhere:9000" })
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		l.Spec.Config["insecureSkipTLSVerify"] = "true"
	})
	w.becomes(repo, isNotReady, "spec.config.insecureSkipTLSVerify: unsupported")
}

// The data and the password stay when a location goes: it may come back.
func deletedLocation(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	a := w.access(repo, nil)
	l := &velerov1.BackupStorageLocation{}
	if err := w.admin.Get(w.Context(), w.at(), l); err != nil {
		w.Fatal(err)
	}
	if err := w.admin.Delete(w.Context(), l.DeepCopy()); err != nil {
		w.Fatal(err)
	}
	for _, o := range []client.Object{&velerov1.BackupRepository{}, &corev1.Secret{}} {
		controlplane.Eventually(w.T, func() error {
			if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(repo), o); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T stays: %v", o, err)
			}
			return nil
		})
	}
	l.ResourceVersion, l.UID = "", ""
	w.create(l)
	again := w.repository("shop")
	w.becomes(again, isReady, "")
	if b := w.access(again, nil); b.UniqueID != a.UniqueID || b.Password != a.Password {
		w.Error("the repository was not found again")
	}
}

// The test plays the Job controller, and a kubelet.
func maintained(w *world) {
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	key := types.NamespacedName{Namespace: w.ns, Name: datamove.MaintenanceJob(repo.Name)}
	end := func(condition batchv1.JobConditionType, says string) {
		w.Helper()
		job := &batchv1.Job{}
		controlplane.Eventually(w.T, func() error { return w.admin.Get(w.Context(), key, job) })
		if says != "" {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: w.ns, GenerateName: job.Name + "-", Labels: map[string]string{batchv1.JobNameLabel: job.Name},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
			}, Spec: job.Spec.Template.Spec}
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			w.create(pod)
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: maintenanceContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: says}}}}
			if err := w.admin.Status().Update(w.Context(), pod); err != nil {
				w.Fatal(err)
			}
		}
		now := metav1.NewTime(w.clock.Now().Truncate(time.Second))
		job.Status.StartTime = &now
		job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded", LastTransitionTime: now}}
		if condition == batchv1.JobComplete {
			job.Status.CompletionTime, job.Status.Succeeded = &now, 1
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now})
		} else {
			job.Status.Failed = 1
			job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, LastTransitionTime: now})
		}
		if err := w.admin.Status().Update(w.Context(), job); err != nil {
			w.Fatal(err)
		}
		controlplane.Eventually(w.T, func() error {
			if err := w.admin.Get(w.Context(), key, &batchv1.Job{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the job stays: %v", err)
			}
			return w.admin.Get(w.Context(), client.ObjectKeyFromObject(repo), repo)
		})
	}
	if err := w.admin.Get(w.Context(), key, &batchv1.Job{}); !apierrors.IsNotFound(err) {
		w.Errorf("maintenance runs before it is due: %v", err)
	}
	w.later(2*defaultFrequency, repo) // the repository is younger than the clock
	end(batchv1.JobFailed, "maintenance: it broke")
	runs := repo.Status.RecentMaintenance
	if len(runs) != 1 || runs[0].Result != velerov1.MaintenanceFailed || runs[0].Message != "maintenance: it broke" || repo.Status.LastMaintenanceTime != nil {
		w.Errorf("%+v", repo.Status)
	}
	w.later(firstMaintenanceRetry, repo)
	report := datamove.MaintenanceReport{Contents: 42_000_000, Remark: "restore points of deleted backups are kept"}
	end(batchv1.JobComplete, string(report.Encode()))
	if got := datamove.ContentsOf(repo); got != report.Contents {
		w.Errorf("the repository is noted to have %d contents, want %d", got, report.Contents)
	}
	runs = repo.Status.RecentMaintenance
	if len(runs) != 2 || runs[1].Result != velerov1.MaintenanceSucceeded || runs[1].Message != "restore points of deleted backups are kept" || repo.Status.LastMaintenanceTime == nil || repo.Status.Phase != isReady {
		w.Errorf("%+v", repo.Status)
	}
}

func passwordForEach(w *world) {
	w.perNamespace = true
	w.start(controlplane.Controller)
	shop, bank := w.repository("shop"), w.repository("bank")
	w.becomes(shop, isReady, "")
	w.becomes(bank, isReady, "")
	if w.access(shop, nil).Password == w.access(bank, nil).Password {
		w.Error("they share a password")
	}
	// What was made with a password keeps it, whatever the setting says later.
	w.stop()
	w.perNamespace = false
	w.start(controlplane.Controller)
	w.later(checkEvery, shop)
	w.becomes(shop, isReady, "")
	third := w.repository("third")
	w.becomes(third, isReady, "")
	w.secret(datamove.LocationPasswordSecret(w.at()))
}

// What deploy/rbac gives is enough, in Varve's namespace.
func ownRights(w *world) {
	w.ns = controlplane.SystemNamespace
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict(), func(o *ctrl.Options) { o.Cache.ByObject = CachedObjects(w.ns) })
	err := Setup(mgr, Options{
		Namespace: w.ns, Image: datamove.PodImage{Name: "varve:test"}, Stores: w.store, Clock: w.clock,
		Namespaces: func(context.Context) ([]string, error) { return []string{w.velero}, nil },
	})
	if err != nil {
		w.Fatal(err)
	}
	controlplane.StartManager(w.T, mgr)
	repo := w.repository("shop")
	w.becomes(repo, isReady, "")
	w.access(repo, nil)
	w.later(2*defaultFrequency, repo) // the repository is younger than the clock
	key := types.NamespacedName{Namespace: w.ns, Name: datamove.MaintenanceJob(repo.Name)}
	controlplane.Eventually(w.T, func() error { return w.admin.Get(w.Context(), key, &batchv1.Job{}) })
	if err := w.admin.Delete(w.Context(), &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}}); err != nil {
		w.Fatal(err)
	}
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(repo), repo); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it stays: %v", err)
		}
		return nil
	})
}

var _ repositoryaccess.Storages = &directories{}

// shelf makes the location a claim in Varve's namespace, whose files are in the test's directory.
func (w *world) shelf(edit func(*velerov1.BackupStorageLocation)) {
	w.Helper()
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: w.velero, Name: "default"}}
	controlplane.Update(w.T, w.admin, l, false, func(l *velerov1.BackupStorageLocation) {
		l.Spec.Provider, l.Spec.Credential, l.Spec.ObjectStorage.Bucket, l.Spec.ObjectStorage.Prefix = location.ProviderClaim, nil, "shelf", "backups"
		if edit != nil {
			edit(l)
		}
	})
}

func (w *world) claim(mode corev1.PersistentVolumeAccessMode) {
	w.Helper()
	w.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "shelf"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{mode}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}})
}

// A repository in a claim is made and looked at by pods, and maintained by pods that mount the claim.
func inAClaim(w *world) {
	w.shelf(nil)
	kubelet := storagepodtest.Start(w.T, w.admin, w.ns, w.dir)
	w.start(controlplane.Controller)
	repo := w.repository("shop")
	w.becomes(repo, isNotReady, "spec.objectStorage.bucket: there is no claim varve/shelf")
	w.claim(corev1.ReadWriteOnce)
	w.later(lookEvery, repo)
	w.becomes(repo, isReady, "only one node can use it at a time")
	a := w.access(repo, nil)
	if a.S3 != nil || a.Directory != datamove.StorageDirectory+"/backups/plugins/varve/shop" || a.UniqueID != repo.Annotations[datamove.AnnotationUniqueID] {
		w.Errorf("the directory is %s, the ID %s", a.Directory, a.UniqueID)
	}
	storage, err := datamove.DecodeStorage(repo.Annotations[datamove.AnnotationStorage])
	if err != nil || !storage.OneNode || storage.Volume.PersistentVolumeClaim.ClaimName != "shelf" {
		w.Errorf("%+v %v", storage, err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "backups", "plugins", "varve", "shop", "kopia.repository.f")); err != nil {
		w.Error(err)
	}
	for _, p := range kubelet.Pods() {
		if text, err := yaml.Marshal(p); err != nil || strings.Contains(string(text), a.Password) {
			w.Errorf("the password is in the pod, %v", err)
		}
	}
	w.later(2*defaultFrequency, repo) // the repository is younger than the clock
	key, job := types.NamespacedName{Namespace: w.ns, Name: datamove.MaintenanceJob(repo.Name)}, &batchv1.Job{}
	controlplane.Eventually(w.T, func() error { return w.admin.Get(w.Context(), key, job) })
	template := job.Spec.Template
	if *template.Spec.SecurityContext.RunAsUser != 0 || template.Labels[datamove.LabelStorage] != storage.Label() || template.Spec.Affinity.PodAffinity == nil ||
		template.Spec.Containers[0].VolumeMounts[2].MountPath != datamove.StorageDirectory {
		w.Errorf("%+v", template)
	}
	// A claim that is gone is said, and what mover pods have stays.
	if err := w.admin.Delete(w.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "shelf"}}); err != nil {
		w.Fatal(err)
	}
	w.later(lookEvery, repo)
	w.becomes(repo, isNotReady, "shelf")
	w.access(repo, nil)
}

// From a claim that is read-only, repositories are read; none is made and none is maintained.
func inAReadOnlyClaim(w *world) {
	theirs := repository.Location{Directory: filepath.Join(w.dir, "backups", datamove.RepositoryPrefix("", "shop"))}
	if err := repository.Create(w.Context(), theirs, "theirs", repository.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: datamove.LocationPasswordSecret(w.at())}, StringData: map[string]string{datamove.PasswordKey: "theirs"},
	})
	w.shelf(func(l *velerov1.BackupStorageLocation) { l.Spec.AccessMode = velerov1.AccessReadOnly })
	w.claim(corev1.ReadOnlyMany)
	kubelet := storagepodtest.Start(w.T, w.admin, w.ns, w.dir)
	w.start(controlplane.Controller)
	shop, bank := w.repository("shop"), w.repository("bank")
	w.becomes(shop, isReady, "")
	w.becomes(bank, isNotReady, "read-only")
	if a := w.access(shop, nil); !a.ReadOnly {
		w.Error("movers may write")
	}
	for _, p := range kubelet.Pods() {
		for _, m := range p.Spec.Containers[0].VolumeMounts {
			if m.MountPath == datamove.StorageDirectory && !m.ReadOnly {
				w.Error("the claim is mounted writable")
			}
		}
	}
	w.later(2*defaultFrequency, shop)
	w.becomes(shop, isReady, "")
	if err := w.admin.Get(w.Context(), types.NamespacedName{Namespace: w.ns, Name: datamove.MaintenanceJob(shop.Name)}, &batchv1.Job{}); !apierrors.IsNotFound(err) {
		w.Errorf("maintenance runs on a read-only location: %v", err)
	}
}
