package backuprepository

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repositoryaccess"
)

var (
	testNow      = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	testLocation = datamove.Location{Namespace: "velero", Name: "default"}
)

// newInput returns what is there when the handler has just made a BackupRepository.
func newInput() *input {
	repo := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{
		Namespace: "varve", Name: datamove.RepositoryName("shop", testLocation), UID: "r1", CreationTimestamp: metav1.NewTime(testNow.Add(-time.Minute)), Annotations: map[string]string{},
	}}
	repo.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: "shop", BackupStorageLocation: testLocation.Name, RepositoryType: "kopia",
		RepositoryConfig: map[string]string{datamove.ConfigLocationNamespace: testLocation.Namespace},
	}
	return &input{
		Now: testNow, Repo: repo, Namespace: "varve", Served: true, Location: &velerov1.BackupStorageLocation{}, Passwords: map[string]string{},
		Place: location.Place{S3: &datamove.S3Access{Endpoint: "m", Bucket: "b", AccessKey: "k", SecretKey: "s"}},
	}
}

func (in *input) attempted(what repositoryaccess.Task, edit func(*attempt)) *input {
	a := in.Place.Access("shop")
	if what != repositoryaccess.LookAround {
		a.Password = in.Passwords[passwordSecretInUse(in)]
	}
	in.Last = &attempt{UID: in.Repo.UID, Fingerprint: fingerprint(in, a), Task: what, At: in.Now}
	if edit != nil {
		edit(in.Last)
	}
	return in
}

func (in *input) withPassword() *input {
	in.Passwords[datamove.LocationPasswordSecret(testLocation)] = "pw"
	return in
}

func (in *input) noted(id string) *input {
	in.Repo.Annotations[datamove.AnnotationUniqueID] = id
	in.Repo.Annotations[datamove.AnnotationPasswordSecret] = datamove.LocationPasswordSecret(testLocation)
	return in
}

// withAccess has movers have what leads to the place.
func (in *input) withAccess() *input {
	a := in.Place.Access("shop")
	a.Password, a.UniqueID = "pw", in.Repo.Annotations[datamove.AnnotationUniqueID]
	in.Access = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{datamove.LabelRepository: in.Repo.Name}}, Data: map[string][]byte{datamove.AccessKey: a.Encode()},
	}
	return in
}

// inClaim makes the place a claim. Movers mount the one that it was before, if it was one.
func (in *input) inClaim(name string) *input {
	if in.Place.Volume != nil {
		in.Repo.Annotations[datamove.AnnotationStorage] = in.Storage.Encode()
	}
	volume := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	in.Place, in.Storage = location.Place{Volume: &volume}, datamove.Storage{Volume: volume}
	return in
}

func (in *input) edit(f func(*input)) *input {
	f(in)
	return in
}

func TestDecide(t *testing.T) {
	t.Parallel()
	shared, own := datamove.LocationPasswordSecret(testLocation), datamove.NamespacePasswordSecret("shop", testLocation)
	const ready, notReady, isNew = velerov1.RepositoryReady, velerov1.RepositoryNotReady, velerov1.RepositoryNew
	found := func(a *attempt) { a.UniqueID, a.Exists = "aa", true }
	failed := func(a *attempt) { a.Failure, a.Failures = "it is broken", 1 }
	type want struct {
		phase  velerov1.BackupRepositoryPhase
		says   string
		task   repositoryaccess.Task
		create string
		writes bool
	}
	for name, c := range map[string]struct {
		in   *input
		want want
	}{
		"another name":                   {newInput().edit(func(in *input) { in.Repo.Name = "x" }), want{phase: notReady, says: "the name does not match"}},
		"restic":                         {newInput().edit(func(in *input) { in.Repo.Spec.RepositoryType = "restic" }), want{phase: notReady, says: "spec.repositoryType"}},
		"no location's namespace":        {newInput().edit(func(in *input) { in.Repo.Spec.RepositoryConfig = nil }), want{phase: notReady, says: "backupStorageLocationNamespace"}},
		"a namespace that is not served": {newInput().edit(func(in *input) { in.Served = false }), want{phase: notReady, says: "not served"}},
		"a refusal":                      {newInput().edit(func(in *input) { in.Refusal = "spec.x: no" }), want{phase: notReady, says: "location velero/default: spec.x: no"}},
		"nothing is known":               {newInput(), want{phase: isNew, task: repositoryaccess.LookAround}},
		"a look runs":                    {newInput().edit(func(in *input) { in.Running = true }), want{phase: isNew}},
		"nothing is there":               {newInput().attempted(repositoryaccess.LookAround, nil), want{phase: isNew, create: shared}},
		"a password for each":            {newInput().edit(func(in *input) { in.PasswordPerNamespace = true }).attempted(repositoryaccess.LookAround, nil), want{phase: isNew, create: own}},
		"what was seen is old":           {newInput().attempted(repositoryaccess.LookAround, func(a *attempt) { a.At = testNow.Add(-time.Hour) }), want{phase: isNew, task: repositoryaccess.LookAround}},
		"the look failed":                {newInput().attempted(repositoryaccess.LookAround, failed), want{phase: notReady, says: "it is broken"}},
		"the look failed long ago":       {newInput().attempted(repositoryaccess.LookAround, func(a *attempt) { failed(a); a.At = testNow.Add(-time.Hour) }), want{phase: notReady, task: repositoryaccess.LookAround}},
		"it exists without password":     {newInput().attempted(repositoryaccess.LookAround, found), want{phase: notReady, says: "key password of Secret varve/" + shared}},
		"another's exists without the shared password": {newInput().attempted(repositoryaccess.LookAround, func(a *attempt) { a.Found = "other" }), want{phase: notReady, says: "of namespace other"}},
		"another's exists, and each has its own":       {newInput().edit(func(in *input) { in.PasswordPerNamespace = true }).attempted(repositoryaccess.LookAround, func(a *attempt) { a.Found = "other" }), want{phase: isNew, create: own}},
		"another was made with the shared password":    {newInput().edit(func(in *input) { in.PasswordUsed = "repo-other" }).attempted(repositoryaccess.LookAround, nil), want{phase: notReady, says: "repo-other"}},
		"it is noted, and its password is lost":        {newInput().noted("aa").attempted(repositoryaccess.LookAround, nil), want{phase: notReady, says: "its password is not here", task: repositoryaccess.CheckRepository}},
		"it is there without its password":             {newInput().noted("aa").attempted(repositoryaccess.CheckRepository, found), want{phase: notReady, says: "its password is not here"}},
		"it goes while its password is not here":       {newInput().noted("aa").attempted(repositoryaccess.CheckRepository, failed), want{phase: notReady, says: "it is broken"}},
		"read-only, and nothing there":                 {newInput().edit(func(in *input) { in.Place.ReadOnly = true }).attempted(repositoryaccess.LookAround, nil), want{phase: notReady, says: "read-only"}},
		"a Secret without a password":                  {newInput().edit(func(in *input) { in.Passwords[shared] = "" }), want{phase: notReady, says: "has no key password"}},
		"the password is there":                        {newInput().withPassword().attempted(repositoryaccess.LookAround, nil), want{phase: isNew, task: repositoryaccess.PrepareRepository}},
		"it is being made":                             {newInput().withPassword().edit(func(in *input) { in.Running = true }), want{phase: isNew}},
		"it is made":                                   {newInput().withPassword().attempted(repositoryaccess.PrepareRepository, found), want{phase: ready, writes: true}},
		"it is checked":                                {newInput().withPassword().noted("aa").attempted(repositoryaccess.CheckRepository, found), want{phase: ready, writes: true}},
		"it is due for a check":                        {newInput().withPassword().noted("aa").attempted(repositoryaccess.CheckRepository, func(a *attempt) { found(a); a.At = testNow.Add(-checkEvery) }), want{phase: ready, task: repositoryaccess.CheckRepository, writes: true}},
		"after a restart":                              {newInput().withPassword().noted("aa").edit(func(in *input) { in.Repo.Status.Phase = ready }), want{phase: ready, task: repositoryaccess.PrepareRepository}},
		"it cannot be opened":                          {newInput().withPassword().attempted(repositoryaccess.PrepareRepository, failed), want{phase: notReady, says: "it is broken"}},
		"it could not be opened":                       {newInput().withPassword().attempted(repositoryaccess.PrepareRepository, func(a *attempt) { failed(a); a.At = testNow.Add(-firstRetry) }), want{phase: notReady, task: repositoryaccess.PrepareRepository}},
		"another one was opened":                       {newInput().withPassword().noted("bb").attempted(repositoryaccess.PrepareRepository, found), want{phase: isNew, task: repositoryaccess.PrepareRepository}},
		"its keys were rotated": {newInput().withPassword().noted("aa").attempted(repositoryaccess.CheckRepository, found).edit(func(in *input) {
			in.Repo.Status.Phase, in.Place.S3.SecretKey = ready, "new"
		}), want{phase: ready, task: repositoryaccess.PrepareRepository}},
		"its location is another bucket": {newInput().withPassword().noted("aa").withAccess().attempted(repositoryaccess.CheckRepository, found).edit(func(in *input) {
			in.Repo.Status.Phase, in.Place.S3 = ready, &datamove.S3Access{Endpoint: "m", Bucket: "other"}
		}), want{phase: notReady, says: "looking", task: repositoryaccess.PrepareRepository}},
		"its location is another bucket, which is looked at": {newInput().withPassword().noted("aa").withAccess().edit(func(in *input) {
			in.Repo.Status.Phase, in.Running, in.Place.S3 = ready, true, &datamove.S3Access{Endpoint: "m", Bucket: "other"}
		}), want{phase: notReady, says: "looking"}},
		"it is found in the other bucket": {newInput().withPassword().noted("aa").withAccess().edit(func(in *input) {
			in.Place.S3 = &datamove.S3Access{Endpoint: "m", Bucket: "other"}
		}).attempted(repositoryaccess.PrepareRepository, found), want{phase: notReady, writes: true}},
		"movers have the access to the other bucket": {newInput().withPassword().noted("aa").edit(func(in *input) {
			in.Place.S3 = &datamove.S3Access{Endpoint: "m", Bucket: "other"}
		}).withAccess().attempted(repositoryaccess.PrepareRepository, found), want{phase: ready}},
		"its location is another claim": {
			newInput().noted("aa").withPassword().inClaim("old").inClaim("new").edit(func(in *input) { in.Repo.Status.Phase = ready }),
			want{phase: notReady, says: "looking", task: repositoryaccess.PrepareRepository},
		},
		"it is found in the other claim": {
			newInput().noted("aa").withPassword().inClaim("old").inClaim("new").attempted(repositoryaccess.PrepareRepository, found),
			want{phase: ready, writes: true},
		},
		"its location is the same claim": {
			newInput().noted("aa").withPassword().inClaim("old").inClaim("old").edit(func(in *input) { in.Repo.Status.Phase = ready }),
			want{phase: ready, task: repositoryaccess.PrepareRepository},
		},
		"the other kind of password, of a repository that is there":              {newInput().edit(func(in *input) { in.PasswordPerNamespace = true }).withPassword().attempted(repositoryaccess.LookAround, found), want{phase: isNew, task: repositoryaccess.PrepareRepository}},
		"the other kind of password, of a repository that a catalogue has found": {newInput().noted("aa").edit(func(in *input) { in.PasswordPerNamespace = true }).withPassword(), want{phase: isNew, task: repositoryaccess.PrepareRepository}},
		"the other kind of password, and nothing there":                          {newInput().edit(func(in *input) { in.PasswordPerNamespace = true }).withPassword().attempted(repositoryaccess.LookAround, nil), want{phase: isNew, create: own}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decide(c.in)
			got := want{phase: d.Phase, says: c.want.says, task: d.Task, create: d.CreatePassword, writes: d.WriteAccess}
			if got != c.want || !strings.Contains(d.Message, c.want.says) {
				t.Errorf("%+v %q, want %+v", got, d.Message, c.want)
			}
			if d.Phase == ready && d.Task != repositoryaccess.PrepareRepository && (d.Access.UniqueID != "aa" || d.Access.Password != "pw") {
				t.Error("the access is not complete")
			}
			if strings.Contains(d.Message, "pw") && !strings.Contains(d.Message, "password") {
				t.Errorf("it shows the password: %s", d.Message)
			}
			if d.After == 0 && c.in.Repo.Name != "x" && refuseSpec(c.in.Repo) == "" {
				t.Error("nobody looks again")
			}
		})
	}
	if d := decide(newInput().edit(func(in *input) { in.Location = nil })); !d.Discard {
		t.Error("a BackupRepository stays without its location")
	}
	if d := decide(newInput().edit(func(in *input) { in.Location, in.Repo.Name = nil, "x" })); d.Discard {
		t.Error("a BackupRepository of somebody else goes")
	}
}

// A failure is retried soon, and later each time, but never so late that a person would not wait.
func TestRetry_backsOff(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{1: firstRetry, 2: 2 * firstRetry, 4: 8 * firstRetry, 50: lastRetry} {
		in := newInput().withPassword().attempted(repositoryaccess.PrepareRepository, func(a *attempt) { a.Failure, a.Failures = "x", failures })
		in.Now = in.Now.Add(want - time.Second)
		early := decide(in)
		in.Now = in.Now.Add(time.Second)
		if late := decide(in); early.Task != "" || late.Task != repositoryaccess.PrepareRepository {
			t.Errorf("%d failures: %q, a second later %q", failures, early.Task, late.Task)
		}
	}
}

func TestMaintenance(t *testing.T) {
	t.Parallel()
	at := func(ago time.Duration) *metav1.Time { m := metav1.NewTime(testNow.Add(-ago)); return &m }
	run := func(result velerov1.BackupRepositoryMaintenanceResult, ago time.Duration) velerov1.BackupRepositoryMaintenanceStatus {
		return velerov1.BackupRepositoryMaintenanceStatus{Result: result, StartTimestamp: at(ago + time.Minute), CompleteTimestamp: at(ago)}
	}
	job := func(in *input, condition batchv1.JobConditionType) {
		in.Job = newMaintenanceJob(t, in.Repo)
		in.Job.Status.StartTime = at(10 * time.Minute)
		if condition != "" {
			in.Job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: "R", Message: "m", LastTransitionTime: *at(time.Minute)}}
		}
	}
	for name, c := range map[string]struct {
		ready  bool
		edit   func(*input)
		create bool
		result velerov1.BackupRepositoryMaintenanceResult
		delete bool
		after  time.Duration
	}{
		"a new repository": {ready: true, after: 29*time.Minute + firstRunOffset("r1", time.Hour)},
		"one and a half hours later": {ready: true, edit: func(in *input) {
			in.Repo.CreationTimestamp = *at(90 * time.Minute)
		}, create: true},
		"not ready": {edit: func(in *input) { in.Repo.CreationTimestamp = *at(2 * time.Hour) }},
		"read-only": {ready: true, edit: func(in *input) {
			in.Repo.CreationTimestamp, in.Place.ReadOnly = *at(2 * time.Hour), true
		}},
		"its own frequency": {ready: true, edit: func(in *input) {
			in.Repo.Spec.MaintenanceFrequency.Duration = 10 * time.Minute
		}, after: 4*time.Minute + firstRunOffset("r1", 10*time.Minute)},
		"after a run": {ready: true, edit: func(in *input) {
			in.Repo.CreationTimestamp = *at(9 * time.Hour)
			in.Repo.Status.LastMaintenanceTime = at(50 * time.Minute)
		}, after: 10 * time.Minute},
		"after a failure": {ready: true, edit: func(in *input) {
			in.Repo.Status.RecentMaintenance = []velerov1.BackupRepositoryMaintenanceStatus{run("Succeeded", time.Hour), run("Failed", time.Minute)}
		}, after: 4 * time.Minute},
		"after two failures": {ready: true, edit: func(in *input) {
			in.Repo.Status.RecentMaintenance = []velerov1.BackupRepositoryMaintenanceStatus{run("Failed", time.Hour), run("Failed", time.Minute)}
		}, after: 9 * time.Minute},
		"time to retry": {ready: true, edit: func(in *input) {
			in.Repo.Status.RecentMaintenance = []velerov1.BackupRepositoryMaintenanceStatus{run("Failed", 5*time.Minute)}
		}, create: true},
		"it runs":      {ready: true, edit: func(in *input) { job(in, "") }},
		"it succeeded": {ready: true, edit: func(in *input) { job(in, batchv1.JobComplete) }, result: "Succeeded", delete: true, after: time.Second},
		"it failed":    {edit: func(in *input) { job(in, batchv1.JobFailed) }, result: "Failed", delete: true, after: time.Second},
		"its deletion was slow": {ready: true, edit: func(in *input) {
			job(in, batchv1.JobComplete)
			record(&in.Repo.Status, runOf(in))
		}, delete: true, after: time.Second},
		"of an earlier BackupRepository": {ready: true, edit: func(in *input) { job(in, ""); in.Job.OwnerReferences[0].UID = "r0" }, after: firstRetry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := newInput()
			if c.edit != nil {
				c.edit(in)
			}
			m := decideMaintenance(in, c.ready)
			var result velerov1.BackupRepositoryMaintenanceResult
			if m.Record != nil {
				result = m.Record.Result
			}
			if m.Create != c.create || result != c.result || m.Delete != c.delete || m.After != c.after {
				t.Errorf("%+v, record %q", m, result)
			}
		})
	}
}

func TestRecord_keepsTheLatest(t *testing.T) {
	t.Parallel()
	status := &velerov1.BackupRepositoryStatus{}
	for i := range 2 * recentRuns {
		at := metav1.NewTime(testNow.Add(time.Duration(i) * time.Hour))
		result := velerov1.MaintenanceSucceeded
		if i%2 == 1 {
			result = velerov1.MaintenanceFailed
		}
		record(status, &velerov1.BackupRepositoryMaintenanceStatus{Result: result, StartTimestamp: &at, CompleteTimestamp: &at})
	}
	last := status.RecentMaintenance[recentRuns-1].CompleteTimestamp
	if len(status.RecentMaintenance) != recentRuns || last.Sub(testNow) != 49*time.Hour || status.LastMaintenanceTime.Sub(testNow) != 48*time.Hour {
		t.Errorf("%d runs, the last %s; the last success %s", len(status.RecentMaintenance), last, status.LastMaintenanceTime)
	}
}

func newMaintenanceJob(t *testing.T, repo *velerov1.BackupRepository) *batchv1.Job {
	t.Helper()
	job, err := maintenanceJob(repo, datamove.PodImage{Name: "varve:1", PullPolicy: corev1.PullNever})
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// Whoever takes over a maintenance pod gets one repository, and nothing of the cluster.
func TestMaintenanceJob_hasNothingButItsRepository(t *testing.T) {
	t.Parallel()
	in := newInput()
	pod := newMaintenanceJob(t, in.Repo).Spec.Template.Spec
	c := pod.Containers[0]
	if *pod.AutomountServiceAccountToken || !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation ||
		len(c.SecurityContext.Capabilities.Add) > 0 || c.SecurityContext.Capabilities.Drop[0] != "ALL" || c.Resources.Limits.Memory().IsZero() || c.Image != "varve:1" || c.ImagePullPolicy != corev1.PullNever {
		t.Errorf("%+v", pod)
	}
	for _, v := range pod.Volumes {
		if v.EmptyDir == nil && (v.Secret == nil || v.Secret.SecretName != in.Repo.Name) {
			t.Errorf("it has volume %s", v.Name)
		}
	}
}

// A repository of 10 TiB has an index of 1.4 GB: a Job with 1 GiB would be killed, and nothing would be freed any more.
func TestMaintenanceJob_growsWithTheIndex(t *testing.T) {
	t.Parallel()
	for contents, memory := range map[string]string{"": "1Gi", "42000000": "3284000000"} {
		in := newInput()
		in.Repo.Annotations = map[string]string{datamove.AnnotationContents: contents}
		room := datamove.RoomFor(datamove.ContentsOf(in.Repo))
		pod := newMaintenanceJob(t, in.Repo).Spec.Template.Spec
		c := pod.Containers[0]
		limit, scratch := c.Resources.Limits.Memory(), pod.Volumes[1].EmptyDir.SizeLimit
		enough := limit.Cmp(resource.MustParse(memory)) >= 0
		if limit.Value() != room.Memory || scratch.Value() != room.Scratch || !enough {
			t.Errorf("%q contents: memory %s, scratch %s, want %+v", contents, limit, scratch, room)
		}
		heap, err := resource.ParseQuantity(strings.TrimSuffix(c.Env[0].Value, "B"))
		if err != nil || c.Env[0].Name != "GOMEMLIMIT" || heap.Cmp(*limit) >= 0 || heap.Value() < limit.Value()*3/4 {
			t.Errorf("%q contents: %+v with a limit of %s (%v)", contents, c.Env[0], limit, err)
		}
	}
}

// What a run has counted is for the Jobs after it; what one that failed says is no count.
func TestDecideMaintenance_notesWhatTheIndexHas(t *testing.T) {
	t.Parallel()
	for condition, want := range map[batchv1.JobConditionType]int64{batchv1.JobComplete: 7, batchv1.JobFailed: 0} {
		in := newInput()
		in.Job = newMaintenanceJob(t, in.Repo)
		in.Job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue}}
		in.JobMessage = string(datamove.MaintenanceReport{Contents: 7}.Encode())
		if m := decideMaintenance(in, true); m.Record == nil || m.Contents != want {
			t.Errorf("%s: %+v", condition, m)
		}
	}
}

// A user agrees on the BackupRepository, and the Job acts by it.
func TestMaintenanceJob_knowsWhatTheUserAgreesTo(t *testing.T) {
	t.Parallel()
	for _, agreed := range []string{"", "2026-11-28T03:00:00Z"} {
		in := newInput()
		in.Repo.Annotations = map[string]string{datamove.AnnotationCollectMissing: agreed}
		var got string
		for _, v := range newMaintenanceJob(t, in.Repo).Spec.Template.Spec.Containers[0].Env {
			if v.Name == datamove.CollectMissingVariable {
				got = v.Value
			}
		}
		if got != agreed {
			t.Errorf("the Job is told %q, want %q", got, agreed)
		}
	}
}
