package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/cli/cluster/clustertest"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/moverpod/storageserver"
)

const claimPassword = "s3cr3tTESTONLY"

// The scripts have a cluster in $KUBECONFIG, which is faked: it has the location varve/shelf, a claim whose content is the directory $SHELF, and
// others; and it runs the pods of Jobs, one process for all of them.
func TestRepositoryOnAClaim(t *testing.T) {
	t.Parallel()
	all := maps.Clone(commands)
	all["pods"] = func(ts *testscript.TestScript, _ bool, args []string) {
		c := ts.Value(claimClusterKey{}).(*claimCluster)
		if made, left := c.counts(); fmt.Sprint(made, left) != strings.Join(args, " ") {
			ts.Fatalf("%d Jobs were made, and %d are left; want %v", made, left, args)
		}
	}
	all["endpods"] = func(ts *testscript.TestScript, _ bool, args []string) {
		ts.Value(claimClusterKey{}).(*claimCluster).setPhase(corev1.PodPhase(args[0]))
	}
	all["forbid"] = func(ts *testscript.TestScript, _ bool, args []string) {
		ts.Value(claimClusterKey{}).(*claimCluster).forbid(strings.Join(args, " "))
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/claim", Cmds: all, Setup: func(env *testscript.Env) error {
		c := newClaimCluster(t, filepath.Join(env.WorkDir, "shelf"))
		env.Values[claimClusterKey{}] = c
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		env.Setenv("SHELF", c.dir)
		env.Setenv("PASSWORD", claimPassword)
		env.Setenv("KUBECONFIG", filepath.Join(env.WorkDir, "kubeconfig"))
		config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c","namespace":"shop"}}],"current-context":"c"}`, c.URL)
		for name, text := range map[string]string{"kubeconfig": config, "password": claimPassword + "\n", "image": strings.Repeat("the content of a disk\n", 10_000)} {
			if err := os.WriteFile(filepath.Join(env.WorkDir, name), []byte(text), 0o600); err != nil {
				return err
			}
		}
		return os.Mkdir(c.dir, 0o700)
	}})
}

// What serves a repository asks for no password: no other pod and no node may reach it.
func TestStorageAddress_isTheLoopback(t *testing.T) {
	t.Parallel()
	if a, err := netip.ParseAddrPort(storageAddress); err != nil || !a.Addr().IsLoopback() {
		t.Errorf("%s: %v", storageAddress, err)
	}
}

type claimClusterKey struct{}

// claimCluster is a fake cluster.
type claimCluster struct {
	*httptest.Server

	dir     string
	objects http.Handler
	forward *clustertest.Forwarding

	mu    sync.Mutex
	made  int
	phase corev1.PodPhase
	jobs  []*claimJob
	// forbidden is a method, or ANY, and a part of the path that the user has no right to.
	forbidden string
}

// claimJob is a Job with its pod.
type claimJob struct {
	job     *batchv1.Job
	address string
	end     func()
}

func newClaimCluster(t *testing.T, dir string) *claimCluster {
	t.Helper()
	c := &claimCluster{dir: dir, objects: objects(claimObjects()), phase: corev1.PodRunning}
	c.forward = &clustertest.Forwarding{To: c.addressOf}
	c.Server = httptest.NewServer(c)
	t.Cleanup(func() {
		for _, name := range c.jobNames() {
			c.deleteJob(name)
		}
		c.Close()
	})
	return c
}

// claimObjects are the objects that are only read.
func claimObjects() map[string]any {
	newLocation := func(name, provider string, edit func(*velerov1.BackupStorageLocation)) *velerov1.BackupStorageLocation {
		l := &velerov1.BackupStorageLocation{}
		l.APIVersion, l.Kind, l.Namespace, l.Name, l.UID = "velero.io/v1", "BackupStorageLocation", "varve", name, types.UID("uid-"+name)
		l.Spec.Provider, l.Spec.ObjectStorage = provider, &velerov1.ObjectStorageLocation{Bucket: "backups"}
		if edit != nil {
			edit(l)
		}
		return l
	}
	claim := func(name string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
		p := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: name}}
		p.APIVersion, p.Kind = "v1", "PersistentVolumeClaim"
		p.Spec.AccessModes, p.Spec.VolumeMode = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, &mode
		return p
	}
	all := map[string]any{}
	for _, l := range []*velerov1.BackupStorageLocation{
		newLocation("shelf", location.ProviderClaim, nil),
		newLocation("readonly", location.ProviderClaim, func(l *velerov1.BackupStorageLocation) { l.Spec.AccessMode = velerov1.AccessReadOnly }),
		newLocation("block", location.ProviderClaim, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Bucket = "block" }),
		newLocation("none", location.ProviderClaim, func(l *velerov1.BackupStorageLocation) { l.Spec.ObjectStorage.Bucket = "none" }),
		newLocation("nas", location.ProviderNFS, func(l *velerov1.BackupStorageLocation) {
			l.Spec.Config = map[string]string{"server": "nas.lan", "path": "/export"}
		}),
	} {
		all["/apis/velero.io/v1/namespaces/varve/backupstoragelocations/"+l.Name] = l
		name := datamove.LocationPasswordSecret(datamove.Location{Namespace: "varve", Name: l.Name})
		s := &corev1.Secret{Data: map[string][]byte{datamove.PasswordKey: []byte(claimPassword + "\n")}}
		s.APIVersion, s.Kind = "v1", "Secret"
		all["/api/v1/namespaces/varve/secrets/"+name] = s
	}
	all["/api/v1/namespaces/varve/persistentvolumeclaims/backups"] = claim("backups", corev1.PersistentVolumeFilesystem)
	all["/api/v1/namespaces/varve/persistentvolumeclaims/block"] = claim("block", corev1.PersistentVolumeBlock)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "varve-controller"}}
	d.APIVersion, d.Kind = "apps/v1", "Deployment"
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "controller", Image: "varve:test", ImagePullPolicy: corev1.PullNever}}
	all["/apis/apps/v1/namespaces/varve/deployments/varve-controller"] = d
	return all
}

func (c *claimCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const jobs, pods = "/apis/batch/v1/namespaces/varve/jobs", "/api/v1/namespaces/varve/pods"
	switch {
	case c.isForbidden(r):
		status := apierrors.NewForbidden(schema.GroupResource{Resource: "objects"}, path.Base(r.URL.Path), errors.New("no right")).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		send(w, http.StatusForbidden, status)
	case r.Method == http.MethodPost && r.URL.Path == jobs:
		c.createJob(w, r)
	case r.Method == http.MethodDelete && path.Dir(r.URL.Path) == jobs:
		// A Job that is deleted in another way leaves its pod.
		body, err := io.ReadAll(r.Body)
		o := &metav1.DeleteOptions{}
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, o)
		}
		if err == nil && o.PropagationPolicy != nil && *o.PropagationPolicy == metav1.DeletePropagationBackground {
			c.deleteJob(path.Base(r.URL.Path))
		}
		send(w, http.StatusOK, &metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	case r.Method == http.MethodPatch && path.Dir(r.URL.Path) == jobs:
		c.patchJob(w, r)
	case path.Base(r.URL.Path) == "portforward":
		c.forward.ServeHTTP(w, r)
	case r.URL.Path == pods:
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, name := range c.jobNames() {
			if r.URL.Query().Get("labelSelector") == batchv1.JobNameLabel+"="+name {
				list.Items = append(list.Items, *c.pod(name))
			}
		}
		send(w, http.StatusOK, list)
	case path.Dir(r.URL.Path) == pods && c.pod(strings.TrimSuffix(path.Base(r.URL.Path), "-pod")) != nil:
		send(w, http.StatusOK, c.pod(strings.TrimSuffix(path.Base(r.URL.Path), "-pod")))
	case path.Base(r.URL.Path) == "events":
		send(w, http.StatusOK, &corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}})
	default:
		c.objects.ServeHTTP(w, r)
	}
}

func send(w http.ResponseWriter, status int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(o)
}

// createJob starts the program of the Job's pod, with a directory of this machine, if the pod is one that Kubernetes would take.
func (c *claimCluster) createJob(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = c.startJob(body)
	}
	if err != nil {
		status := apierrors.NewBadRequest(err.Error()).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		send(w, http.StatusBadRequest, status)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	send(w, http.StatusCreated, c.jobs[len(c.jobs)-1].job)
}

func (c *claimCluster) startJob(body []byte) error {
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return err
	}
	job, ok := decoded.(*batchv1.Job)
	if !ok {
		return fmt.Errorf("a %T", decoded)
	}
	container := job.Spec.Template.Spec.Containers[0]
	directory, ok := strings.CutPrefix(container.Args[0], "--directory="+datamove.StorageDirectory)
	mounts := container.VolumeMounts
	digest, protected := strings.CutPrefix(container.Args[1], "--key-sha256=")
	if !ok || !protected || !slices.Equal(container.Command, []string{"/usr/bin/varve", "mover", "serve-storage"}) ||
		container.Image != "varve:test" || container.ImagePullPolicy != corev1.PullNever ||
		*job.Spec.TTLSecondsAfterFinished != 60 || job.Spec.ActiveDeadlineSeconds == nil || *job.Spec.ActiveDeadlineSeconds > 300 || *job.Spec.BackoffLimit != 0 || *job.Spec.Template.Spec.AutomountServiceAccountToken || mounts[len(mounts)-1].MountPath != datamove.StorageDirectory ||
		job.Spec.Template.Labels[datamove.LabelLook] != datamove.LookDirectory || len(job.OwnerReferences) != 1 || strings.Contains(string(body), claimPassword) {
		return fmt.Errorf("the Job %+v", job)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = storageserver.Run(ctx, storageserver.Options{
			Directory: filepath.Join(c.dir, directory), KeyDigest: digest, Listener: l, Idle: datamove.ServeIdle,
			Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		})
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	job.APIVersion, job.Kind = "batch/v1", "Job"
	job.Name, job.UID = fmt.Sprintf("%s%d", job.GenerateName, c.made), types.UID(fmt.Sprint("job-", c.made))
	c.jobs = append(c.jobs, &claimJob{job: job, address: l.Addr().String(), end: func() { cancel(); <-ended }})
	return nil
}

// patchJob removes the deadline of a Job.
func (c *claimCluster) patchJob(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.jobs, func(j *claimJob) bool { return j.job.Name == path.Base(r.URL.Path) })
	if err != nil || i < 0 || string(body) != `{"spec":{"activeDeadlineSeconds":null}}` {
		status := apierrors.NewBadRequest(string(body)).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		send(w, http.StatusBadRequest, status)
		return
	}
	c.jobs[i].job.Spec.ActiveDeadlineSeconds = nil
	send(w, http.StatusOK, c.jobs[i].job)
}

func (c *claimCluster) deleteJob(name string) {
	c.mu.Lock()
	i := slices.IndexFunc(c.jobs, func(j *claimJob) bool { return j.job.Name == name })
	if i < 0 {
		c.mu.Unlock()
		return
	}
	j := c.jobs[i]
	c.jobs = slices.Delete(c.jobs, i, i+1)
	c.mu.Unlock()
	c.forward.Cut()
	j.end()
}

func (c *claimCluster) jobNames() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		names = append(names, j.job.Name)
	}
	return names
}

// pod returns the pod of a Job, or nil.
func (c *claimCluster) pod(job string) *corev1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if j.job.Name != job {
			continue
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: job + "-pod", Labels: map[string]string{batchv1.JobNameLabel: job}}}
		p.APIVersion, p.Kind, p.Status.Phase = "v1", "Pod", c.phase
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job, UID: j.job.UID, Controller: ptr.To(true)}}
		if c.phase == corev1.PodFailed {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", Message: "unknown command"}}}}
		}
		return p
	}
	return nil
}

// addressOf returns where a pod listens.
func (c *claimCluster) addressOf(requested string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.jobs {
		if strings.Contains(requested, "/"+j.job.Name+"-pod/") && j.job.Spec.ActiveDeadlineSeconds == nil && c.phase == corev1.PodRunning {
			return j.address
		}
	}
	return ""
}

func (c *claimCluster) counts() (made, left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made, len(c.jobs)
}

func (c *claimCluster) forbid(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forbidden = what
}

func (c *claimCluster) isForbidden(r *http.Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	method, resource, ok := strings.Cut(c.forbidden, " ")
	return ok && (method == "ANY" || r.Method == method) && strings.Contains(r.URL.Path, "/"+resource)
}

func (c *claimCluster) setPhase(p corev1.PodPhase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = p
}

// objects serves objects by their paths, as an API server does.
func objects(all map[string]any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		o, ok := all[r.URL.Path]
		if !ok || r.Method != http.MethodGet {
			status := apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, path.Base(r.URL.Path)).Status()
			status.APIVersion, status.Kind = "v1", "Status"
			w.WriteHeader(http.StatusNotFound)
			o = status
		}
		_ = json.NewEncoder(w).Encode(o)
	})
}
