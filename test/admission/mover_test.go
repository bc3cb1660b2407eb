//go:build controlplane

package admission

import (
	"context"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/test/controlplane"
)

// moverIn returns the account of mover pods with the token of a pod.
func moverIn(pod string) controlplane.User {
	user := controlplane.ServiceAccount(controlplane.SystemNamespace, datamove.ServiceAccount)
	user.Extra = map[string][]string{"authentication.kubernetes.io/pod-name": {pod}}
	return user
}

// newUpload makes a DataUpload in progress that node-b drives.
func newUpload(t *testing.T) *velerov2.DataUpload {
	t.Helper()
	o := &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace(t), Name: "b1-x", Labels: map[string]string{"velero.io/backup-name": "b1"}, Annotations: map[string]string{"mine": "1"},
			Finalizers: []string{"example.com/other"},
		},
		Spec: velerov2.DataUploadSpec{
			SnapshotType: "CSI", SourcePVC: "data", DataMover: "varve", BackupStorageLocation: "default", SourceNamespace: "app",
			OperationTimeout: velerov1.Duration{Duration: time.Minute},
		},
		Status: velerov2.DataUploadStatus{Phase: velerov2.PhaseInProgress, AcceptedByNode: "node-b"},
	}
	admitted(t, cluster.Client(t, controlplane.Admin).Create(t.Context(), o))
	return o
}

const (
	ownObject  = "a mover pod writes only the object that it was made for"
	noRequest  = "a mover pod does not change what is asked for"
	noStatus   = "of the status, a mover pod writes its progress alone"
	noMetadata = "of the metadata, a mover pod writes its report and its note alone"
)

func TestMover_writesItsOwnReportAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit func(*velerov2.DataUpload)
		says string
	}{
		"progress": {func(o *velerov2.DataUpload) {
			o.Status.Progress, o.Status.IncrementalBytes = velerov2.Progress{TotalBytes: 2, BytesDone: 1}, 1
		}, ""},
		"a result":             {func(o *velerov2.DataUpload) { o.Status.DataMoverResult = map[string]string{"a": "b"} }, ""},
		"a report":             {func(o *velerov2.DataUpload) { o.Annotations[datamove.AnnotationReport] = "{}" }, ""},
		"a note":               {func(o *velerov2.DataUpload) { o.Annotations[datamove.AnnotationNote] = "{}" }, ""},
		"a cancel":             {func(o *velerov2.DataUpload) { o.Spec.Cancel = true }, noRequest},
		"another source":       {func(o *velerov2.DataUpload) { o.Spec.SourcePVC = "other" }, "spec is immutable, except for cancel"},
		"the phase":            {func(o *velerov2.DataUpload) { o.Status.Phase = velerov2.PhaseCompleted }, noStatus},
		"the phase goes":       {func(o *velerov2.DataUpload) { o.Status.Phase = "" }, noStatus},
		"the snapshot":         {func(o *velerov2.DataUpload) { o.Status.SnapshotID = "victim" }, noStatus},
		"the driver":           {func(o *velerov2.DataUpload) { o.Status.AcceptedByNode = "node-a" }, noStatus},
		"another annotation":   {func(o *velerov2.DataUpload) { o.Annotations[datamove.AnnotationExposed] = "{}" }, noMetadata},
		"an annotation goes":   {func(o *velerov2.DataUpload) { delete(o.Annotations, "mine") }, noMetadata},
		"a label":              {func(o *velerov2.DataUpload) { o.Labels["velero.io/backup-name"] = "b2" }, noMetadata},
		"somebody's finalizer": {func(o *velerov2.DataUpload) { o.Finalizers = nil }, noMetadata},
		"an owner": {func(o *velerov2.DataUpload) {
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}
		}, noMetadata},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newUpload(t)
			pod := datamove.ChildName(datamove.Upload, o.UID)
			c.edit(o)
			for _, other := range []string{"", "du-other", datamove.ChildName(datamove.Download, o.UID)} {
				why := []string{ownObject}
				if c.says != "" {
					why = append(why, c.says)
				}
				refused(t, cluster.Client(t, moverIn(other)).Update(t.Context(), o.DeepCopy()), why...)
			}
			err := cluster.Client(t, moverIn(pod)).Update(t.Context(), o)
			if c.says == "" {
				admitted(t, err)
				return
			}
			refused(t, err, c.says)
		})
	}
}

func TestMover_makesAndDeletesNothing(t *testing.T) {
	t.Parallel()
	o := newUpload(t)
	mover := cluster.Client(t, moverIn(datamove.ChildName(datamove.Upload, o.UID)))
	refused(t, mover.Delete(t.Context(), o), ownObject, noRequest, noStatus, noMetadata)
	o.ResourceVersion, o.Name = "", "another"
	refused(t, mover.Create(t.Context(), o), ownObject, noRequest, noStatus, noMetadata)
}

// Whatever is wrong with the controller, a mover pod is one.
func TestController_makesMoverPodsAsTheyAre(t *testing.T) {
	t.Parallel()
	const (
		named, plain = "a mover pod is named after the object that it works for", "a mover pod has one container " +
			"and the account varve-mover"
		bounded     = "a mover pod has no privileges but those that files of any owner need"
		mounts      = "a mover pod mounts claims"
		environment = "a mover pod gets nothing of Secrets and ConfigMaps in its environment"
	)
	volume := func(s corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: s}} }
	}
	projected := func(sources ...corev1.VolumeProjection) func(*corev1.Pod) {
		return volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Pod)
		says string
	}{
		"a mover's":            {func(*corev1.Pod) {}, ""},
		"a shared storage":     {func(p *corev1.Pod) { p.Labels[datamove.LabelStorage] = "x" }, ""},
		"its repository":       {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "repo-app"}}), ""},
		"its own secret":       {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "du-1"}}), ""},
		"another pod's secret": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "du-2"}}), mounts},
		"another name":         {func(p *corev1.Pod) { p.Name = "du-other" }, named},
		"no label":             {func(p *corev1.Pod) { p.Labels = nil }, named},
		"another account":      {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "varve-controller" }, plain},
		"a token by itself":    {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = nil }, plain},
		"the node's network":   {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, plain},
		"the node's processes": {func(p *corev1.Pod) { p.Spec.HostPID = true }, plain},
		"another command": {
			func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/bin/sh"} },
			"a mover pod runs the mover",
		},
		"arguments": {
			func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--help"} },
			"a mover pod runs the mover",
		},
		"another container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{
				Name:  "i",
				Image: "i",
			}}
		}, plain},
		"privileged": {func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		}, bounded},
		"more capabilities": {func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
		}, bounded},
		"a writable root":  {func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem = nil }, bounded},
		"the node's files": {volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}), mounts},
		"its token":        {projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}), ""},
		"a token for a driver's service": {projected(
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "csi.test", ExpirationSeconds: ptr.To[int64](600)}},
		), ""},
		"a secret, projected": {projected(corev1.VolumeProjection{
			Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "varve-webhook"}},
		}), mounts},
		"a secret, projected beside its token": {projected(
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "varve-webhook"}}},
		), mounts},
		"a secret as a variable": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "varve-webhook"}, Key: "tls.key"},
			}}}
		}, environment},
		"a secret's keys as variables": {func(p *corev1.Pod) {
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "varve-webhook"}}}}
		}, environment},
		"its own name as a variable": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
		}, ""},
		"another secret": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "varve-webhook"}}), mounts},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "du-1", Labels: map[string]string{datamove.LabelObject: "1"}},
			Spec: corev1.PodSpec{
				ServiceAccountName: datamove.ServiceAccount, AutomountServiceAccountToken: ptr.To(false),
				Containers: []corev1.Container{{
					Name: "mover", Image: "varve",
					Command: []string{"/usr/bin/varve", "mover", "upload"}, SecurityContext: &corev1.SecurityContext{
						AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
						Capabilities: &corev1.Capabilities{
							Drop: []corev1.Capability{"ALL"},
							Add:  []corev1.Capability{"CHOWN"},
						},
					},
				}},
			},
		}
		c.edit(pod)
		t.Log(name)
		err := cluster.Client(t, controlplane.Controller).Create(t.Context(), pod, client.DryRunAll)
		if c.says == "" {
			admitted(t, err)
			continue
		}
		refused(t, err, c.says)
	}
}

// A handler that is taken over has no way to what is backed up, nor to how: its roles have nothing of data movements.
func TestHandler_hasNoRightsToDataMovements(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := newUpload(t)
	handler := cluster.Client(t, controlplane.HandlerOn("node-b").Restrict())
	in := metav1.ObjectMeta{
		Namespace: controlplane.SystemNamespace, Name: "du-1",
		Labels: map[string]string{datamove.LabelObject: "1"},
	}
	merge := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	for name, try := range map[string]func(ctx context.Context) error{
		"read a DataUpload": func(ctx context.Context) error {
			return handler.Get(ctx, client.ObjectKeyFromObject(o),
				o.DeepCopy())
		},
		"write a DataUpload": func(ctx context.Context) error { return handler.Patch(ctx, o.DeepCopy(), merge) },
		"make a pod": func(ctx context.Context) error {
			return handler.Create(ctx,
				&corev1.Pod{ObjectMeta: in})
		},
		"delete a pod": func(ctx context.Context) error {
			return handler.Delete(ctx,
				&corev1.Pod{ObjectMeta: in})
		},
		"make a Job": func(ctx context.Context) error {
			return handler.Create(ctx,
				&batchv1.Job{ObjectMeta: in})
		},
		"make a claim": func(ctx context.Context) error {
			return handler.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: in})
		},
		"delete a claim": func(ctx context.Context) error {
			return handler.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: in})
		},
		"give a volume away": func(ctx context.Context) error {
			return handler.Patch(ctx, &corev1.PersistentVolume{ObjectMeta: in}, merge)
		},
		"read a repository's Secret": func(ctx context.Context) error {
			return handler.Get(ctx, client.ObjectKey{Namespace: in.Namespace, Name: "repo-app"}, &corev1.Secret{})
		},
		"list Secrets": func(ctx context.Context) error {
			return handler.List(ctx, &corev1.SecretList{}, client.InNamespace(in.Namespace))
		},
		"make a BackupRepository": func(ctx context.Context) error {
			return handler.Create(ctx, &velerov1.BackupRepository{ObjectMeta: in})
		},
		"read a BackupStorageLocation": func(ctx context.Context) error {
			return handler.List(ctx,
				&velerov1.BackupStorageLocationList{})
		},
	} {
		if err := try(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, resource := range []string{"volumesnapshots", "volumesnapshotcontents"} {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
			for _, namespace := range []string{"", controlplane.SystemNamespace, o.Namespace} {
				if mayDo(t, controlplane.HandlerOn("node-b"), verb, "snapshot.storage.k8s.io", resource, namespace) {
					t.Errorf("it may %s %s in %q", verb, resource, namespace)
				}
			}
		}
	}
	if !mayDo(t, controlplane.Controller, "delete", "snapshot.storage.k8s.io", "volumesnapshots", o.Namespace) {
		t.Error("nobody may delete a snapshot: the roles are not there")
	}
}

// A location that uses a role is looked into by a pod with the movers' account, which has no object.
func TestController_makesPodsThatLook(t *testing.T) {
	t.Parallel()
	look := func(edit func(*corev1.Pod)) error {
		storage := datamove.Storage{Identity: &datamove.Identity{Audience: "sts.amazonaws.com"}}
		template := storage.NewPod(datamove.PodImage{Name: "varve"}, "look")
		pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Namespace, pod.Name = controlplane.SystemNamespace, "look-1"
		edit(pod)
		return cluster.Client(t, controlplane.Controller).Create(t.Context(), pod, client.DryRunAll)
	}
	admitted(t, look(func(p *corev1.Pod) {
		if p.Spec.ServiceAccountName != datamove.ServiceAccount {
			t.Errorf("it has the account %s", p.Spec.ServiceAccountName)
		}
	}))
	const looks = "a pod that looks into a storage runs varve mover look"
	refused(t, look(func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/bin/sh"} }), looks)
	refused(t, look(func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}} }), looks)
}

// mayDo reports whether the roles let a user do something to a kind whose CRD need not be there.
func mayDo(t *testing.T, user controlplane.User, verb, group, resource, namespace string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Name, Groups: user.Groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource,
			Namespace: namespace,
		},
	}}
	if err := cluster.Client(t, controlplane.Admin).Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

// Kubernetes makes the pods of maintenance Jobs, with the labels that network policies and the scheduler go by; but nowhere else.
func TestJobs_getTheirPods(t *testing.T) {
	t.Parallel()
	elsewhere := cluster.Namespace(t)
	for _, name := range []string{"system:serviceaccount:kube-system:job-controller", "system:kube-controller-manager"} {
		kubernetes := controlplane.User{Name: name}
		for _, namespace := range []string{controlplane.SystemNamespace, elsewhere} {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "maintain-", Labels: map[string]string{
					datamove.LabelRepository: "repo-app", datamove.LabelMaintenance: "true", datamove.LabelStorage: "x",
				}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "maintain", Image: "varve"}}},
			}
			err := cluster.Client(t, kubernetes).Create(t.Context(), pod, client.DryRunAll)
			if namespace == controlplane.SystemNamespace {
				admitted(t, err)
				continue
			}
			refused(t, err, "only Varve sets the labels")
		}
	}
}

// A mover pod that reads a definition fills the Secret of its name. It neither reads nor changes another one.
func TestMover_writesTheSecretOfItsNameAlone(t *testing.T) {
	t.Parallel()
	const (
		ownSecret  = "a mover pod writes only the Secret for a definition that has its name"
		definition = "of that Secret, a mover pod writes the definition alone"
	)
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := cluster.Client(t, controlplane.Admin)
	create := func(name string, kind corev1.SecretType) {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: controlplane.SystemNamespace, Name: name,
				Labels: map[string]string{"mine": "1"},
			},
			Type: kind,
		}
		admitted(t, admin.Create(t.Context(), s))
	}
	patch := func(name, body string) error {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: name}}
		return cluster.Client(t, moverIn("dd-1").Restrict()).Patch(t.Context(), s,
			client.RawPatch(types.MergePatchType, []byte(body)))
	}
	create("dd-1", datamove.DefinitionSecretType)
	create("dd-2", datamove.DefinitionSecretType)
	create("password", corev1.SecretTypeOpaque)
	const data = `{"type":"varvebackup.io/machine-definition","data":{"definition":"e30="}}`
	admitted(t, patch("dd-1", data))
	refused(t, patch("dd-2", data), ownSecret)
	refused(t, patch("password", `{"data":{"definition":"e30="}}`), ownSecret)
	refused(t, patch("dd-1", `{"data":{"other":"e30="}}`), definition)
	refused(t, patch("dd-1", `{"metadata":{"labels":{"mine":"2"}}}`), definition)
	mover := cluster.Client(t, moverIn("dd-1").Restrict())
	s := &corev1.Secret{}
	if err := mover.Get(t.Context(), client.ObjectKey{Namespace: controlplane.SystemNamespace, Name: "dd-1"},
		s); !apierrors.IsForbidden(err) {
		t.Errorf("a mover pod reads a Secret: %v", err)
	}
}
