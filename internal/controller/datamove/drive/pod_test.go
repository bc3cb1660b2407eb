package drive

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/nodeselector"
	"github.com/varvebackup/varve/test/verdict"
)

func upload() *velerov2.DataUpload {
	return &velerov2.DataUpload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1-x", UID: "u1", Labels: map[string]string{datamove.LabelBackupName: "b1", "other": "x"}},
		Spec:       velerov2.DataUploadSpec{SourceNamespace: "app", SourcePVC: "data", SnapshotType: "CSI", DataMover: "varve"},
	}
}

func podFor(t *testing.T, edit func(*podInput)) *corev1.Pod {
	t.Helper()
	o := upload()
	v, err := viewOf(o)
	if err != nil {
		t.Fatal(err)
	}
	in := podInput{
		object: o, view: v, namespace: "varve", node: "node-a", repository: "repo-app",
		image:  datamove.PodImage{Name: "varve:1", PullPolicy: corev1.PullNever},
		volume: Volume{Claim: "du-u1", VolumeMode: corev1.PersistentVolumeFilesystem, SourceUID: "pvc-1"}, settings: settings.Default(),
	}
	edit(&in)
	return moverPod(in)
}

func TestMoverPod_hasNothingButWhatItNeeds(t *testing.T) {
	t.Parallel()
	pod := podFor(t, func(in *podInput) {
		in.settings.Pod.Labels = map[string]string{"team": "x", datamove.LabelObject: "forged"}
	})
	c := pod.Spec.Containers[0]
	s := c.SecurityContext
	if pod.Spec.ServiceAccountName != datamove.ServiceAccount || *pod.Spec.AutomountServiceAccountToken || pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC ||
		!*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || *s.Privileged || !cmp.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		pod.Spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || pod.Spec.RestartPolicy != corev1.RestartPolicyOnFailure ||
		c.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError || c.Image != "varve:1" || c.ImagePullPolicy != corev1.PullNever {
		t.Errorf("%+v %+v", pod.Spec, s)
	}
	if pod.Name != "du-u1" || pod.Labels["team"] != "x" || pod.Labels[datamove.LabelObject] != "u1" || pod.Annotations[datamove.AnnotationOwner] != "DataUpload/velero/b1-x" ||
		pod.Labels[datamove.LabelPodUpload] != "b1-x" {
		t.Errorf("%+v", pod.ObjectMeta)
	}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			t.Errorf("%s is a directory of the node", v.Name)
		}
		if v.Secret != nil && (v.Secret.SecretName != "repo-app" || *v.Secret.DefaultMode != 0o400) {
			t.Errorf("%+v", v.Secret)
		}
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil {
			t.Errorf("%s has no limit", v.Name)
		}
		if v.Projected != nil && *v.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds != 3600 {
			t.Errorf("%+v", v.Projected.Sources[0])
		}
	}
	job, err := datamove.DecodeJob(c.Env[0].Value)
	if err != nil || job.SourceUID != "pvc-1" || job.UID != "u1" || job.SourceClaim != "data" || !cmp.Equal(job.Labels, map[string]string{datamove.LabelBackupName: "b1"}) {
		t.Errorf("%+v, %v", job, err)
	}
	if !slices.Contains(c.Env, corev1.EnvVar{Name: "GOGC", Value: "40"}) {
		t.Errorf("Go's collector lets the mover take what it does not need: %+v", c.Env)
	}
}

// A mover whose location has a role keeps the token of its own account, and has one more, which is for the STS alone.
func TestMoverPod_hasATokenForTheRoleOfItsLocation(t *testing.T) {
	t.Parallel()
	pod := podFor(t, func(in *podInput) {
		in.storage = &datamove.Storage{Identity: &datamove.Identity{Audience: "sts.amazonaws.com"}}
	})
	audiences := map[string]string{}
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		for _, v := range pod.Spec.Volumes {
			if v.Name == m.Name && v.Projected != nil {
				audiences[m.MountPath] = v.Projected.Sources[0].ServiceAccountToken.Audience
			}
		}
	}
	if diff := cmp.Diff(map[string]string{tokenDirectory: "", datamove.IdentityDirectory: "sts.amazonaws.com"}, audiences); diff != "" {
		t.Error(diff)
	}
	if pod.Spec.ServiceAccountName != datamove.ServiceAccount || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("%+v", pod.Spec)
	}
}

func TestMoverPod_readsEndpointsWithItsOwnSecret(t *testing.T) {
	t.Parallel()
	from := &datamove.EndpointSource{Map: "https://x.app.svc/exports/root/map", Data: "https://x.app.svc/exports/root/data", Volume: "root", BackupUID: "b1"}
	pod := podFor(t, func(in *podInput) { in.volume = Volume{SourceUID: "pvc-1", Endpoint: from} })
	job, err := datamove.DecodeJob(pod.Spec.Containers[0].Env[0].Value)
	if err != nil || !cmp.Equal(job.Endpoint, from) || job.VolumeMode != "" || job.SourceUID != "pvc-1" {
		t.Errorf("%+v, %v", job, err)
	}
	found := false
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			t.Errorf("a claim: %+v", v)
		}
		if v.Secret == nil || v.Secret.SecretName != pod.Name {
			continue
		}
		found = *v.Secret.DefaultMode == 0o400 && (v.Secret.Optional == nil || !*v.Secret.Optional) &&
			cmp.Equal(v.Secret.Items, []corev1.KeyToPath{{Key: "token", Path: "token"}, {Key: "ca.crt", Path: "ca.crt"}, {Key: "ended", Path: "ended"}})
	}
	mounted := slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == datamove.EndpointDirectory && m.ReadOnly && m.SubPath == "" // which the kubelet would not bring up to date
	})
	if !found || !mounted {
		t.Errorf("%+v", pod.Spec)
	}
}

// The token for the driver's service is there if it is needed, and is for that service alone.
func TestMoverPod_hasATokenForTheSnapshotMetadataService(t *testing.T) {
	t.Parallel()
	from := &datamove.SnapshotSource{
		SnapshotMoment: datamove.SnapshotMoment{Driver: "csi.test", Volume: "v", Snapshot: "s", Taken: 1},
		Metadata:       &datamove.SnapshotMetadata{Address: "metadata.csi:6443", CA: []byte("PEM"), Audience: "csi.test.audience", Namespace: "varve", Name: "du-u1"},
	}
	without := *from
	without.Metadata, without.NoMetadata = nil, "nobody offers one"
	for source, want := range map[*datamove.SnapshotSource][]string{from: {"", "csi.test.audience"}, &without: {""}, nil: {""}} {
		pod := podFor(t, func(in *podInput) {
			in.volume = Volume{Claim: "du-u1", VolumeMode: corev1.PersistentVolumeBlock, SourceUID: "pvc-1", Snapshot: source}
		})
		job, err := datamove.DecodeJob(pod.Spec.Containers[0].Env[0].Value)
		if err != nil || !cmp.Equal(job.Snapshot, source) {
			t.Errorf("%+v, %v", job, err)
		}
		var audiences []string
		for _, v := range pod.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.ServiceAccountToken != nil {
					audiences = append(audiences, s.ServiceAccountToken.Audience)
				}
			}
		}
		mounted := slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == datamove.SnapshotTokenDirectory && m.ReadOnly && m.SubPath == "" // which the kubelet would not bring up to date
		})
		if !slices.Equal(audiences, want) || mounted != (len(want) > 1) {
			t.Errorf("tokens for %q, mounted: %t", audiences, mounted)
		}
	}
}

func TestMoverPod_readsTheDiskOfARunningMachineThroughItsPort(t *testing.T) {
	t.Parallel()
	from := &datamove.TunnelSource{Volume: "root", BackupUID: "b1", Checkpoint: "daily-2", BaseCheckpoint: "daily-1", BaseUID: "b0"}
	pod := podFor(t, func(in *podInput) {
		o := upload()
		asked := datamove.MachineDisk{Machine: "web", Volume: "root", ScratchClaim: "scratch", Group: "monday", Disks: 2}
		o.Spec.SnapshotType, o.Spec.DataMoverConfig = velerov2.SnapshotMachineBackup, asked.Config()
		in.object, in.volume = o, Volume{SourceUID: "pvc-1", Tunnel: from, Bytes: 1 << 20}
	})
	c := pod.Spec.Containers[0]
	const golden = `{"version":1,"kind":"DataUpload","namespace":"velero","name":"b1-x","uid":"u1","sourceNamespace":"app","sourceClaim":"data","sourceUID":"pvc-1",` +
		`"tunnel":{"backupUID":"b1","volume":"root","checkpoint":"daily-2","baseCheckpoint":"daily-1","baseUID":"b0"},` +
		`"labels":{"varvebackup.io/data-upload-group":"monday","velero.io/backup-name":"b1"}}`
	if diff := cmp.Diff(golden, c.Env[0].Value); diff != "" {
		t.Error(verdict.GoldenMark + diff)
	}
	if _, err := datamove.DecodeJob(c.Env[0].Value); err != nil {
		t.Error(err)
	}
	found := false
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			t.Errorf("a claim: %+v", v)
		}
		if v.Secret == nil || v.Secret.SecretName != pod.Name {
			continue
		}
		found = *v.Secret.DefaultMode == 0o400 && (v.Secret.Optional == nil || !*v.Secret.Optional) && cmp.Equal(v.Secret.Items, []corev1.KeyToPath{
			{Key: "token", Path: "token"}, {Key: "tls.crt", Path: "tls.crt"}, {Key: "tls.key", Path: "tls.key"}, {Key: "ended", Path: "ended"},
		})
	}
	mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.MountPath == datamove.TunnelDirectory && m.ReadOnly && m.SubPath == "" // which the kubelet would not bring up to date
	})
	if !found || !mounted || !cmp.Equal(c.Ports, []corev1.ContainerPort{{Name: "tunnel", ContainerPort: 9090, Protocol: corev1.ProtocolTCP}}) {
		t.Errorf("%+v", pod.Spec)
	}
	if len(podFor(t, func(*podInput) {}).Spec.Containers[0].Ports) > 0 {
		t.Error("a pod that nobody calls has a port")
	}
}

// The definition of the machine is in the pod's own Secret, and the job says only that it is there.
func TestMoverPod_hasTheDefinitionOfItsMachine(t *testing.T) {
	t.Parallel()
	const uid = "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e"
	asked := datamove.MachineDisk{
		Machine: "web", Volume: "root", ScratchClaim: "scratch", Group: "monday", Disks: 2,
		Definition: uid,
	}
	for name, from := range map[string]*datamove.TunnelSource{"a disk of a machine": {Volume: "root", BackupUID: "b1"}, "a volume": nil} {
		pod := podFor(t, func(in *podInput) {
			o := upload()
			o.Spec.DataMoverConfig = asked.Config()
			o.Spec.DataMoverConfig[datamove.ConfigMachineBackup] = "web-monday"
			o.Spec.DataMoverConfig[datamove.ConfigStoragePatience] = "50m0s"
			in.object, in.volume = o, Volume{SourceUID: "pvc-1", Tunnel: from, Bytes: 1 << 20}
			if from == nil {
				in.volume.Claim, in.volume.VolumeMode = "du-u1", corev1.PersistentVolumeBlock
			}
		})
		text := pod.Spec.Containers[0].Env[0].Value
		job, err := datamove.DecodeJob(text)
		if err != nil || job.Definition != (from != nil) || strings.Contains(text, uid) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
		if job.WaitForStorage() != 50*time.Minute {
			t.Errorf("%s: the pod waits %s for its storage", name, job.WaitForStorage())
		}
		if job.Labels[datamove.LabelMachine] != "web" || job.Labels[datamove.LabelMachineBackup] != "web-monday" {
			t.Errorf("%s: the restore point does not say of which machine and backup it is: %v", name, job.Labels)
		}
		brought := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == pod.Name &&
				slices.Contains(v.Secret.Items, corev1.KeyToPath{Key: "definition", Path: "definition"})
		})
		if brought != (from != nil) {
			t.Errorf("%s: the pod has a definition: %t", name, brought)
		}
	}
}

// So is that of a stopped machine, whose disk comes from an export.
func TestMoverPod_hasTheDefinitionOfAStoppedMachine(t *testing.T) {
	t.Parallel()
	asked := datamove.ExportDisk{
		Export: "web-disks", Group: "monday",
		Definition: "7f2ad3c4-0b1e-4c55-9e0f-2d6a1b3c4d5e",
	}
	from := &datamove.EndpointSource{
		Map: "https://x.app.svc/exports/data/map", Data: "https://x.app.svc/exports/data/data", Export: true,
		Volume: "data", BackupUID: "e1",
	}
	pod := podFor(t, func(in *podInput) {
		o := upload()
		o.Spec.DataMoverConfig = asked.Config()
		in.object, in.volume = o, Volume{SourceUID: "pvc-1", Endpoint: from}
	})
	job, err := datamove.DecodeJob(pod.Spec.Containers[0].Env[0].Value)
	if err != nil || !job.Definition || job.Labels[datamove.LabelGroup] != "monday" || !cmp.Equal(job.Endpoint, from) {
		t.Errorf("%+v, %v", job, err)
	}
	var mounted string
	for _, v := range pod.Spec.Volumes {
		if v.Secret == nil || v.Secret.SecretName != pod.Name ||
			!slices.Contains(v.Secret.Items, corev1.KeyToPath{Key: "definition", Path: "definition"}) {
			continue
		}
		for _, m := range pod.Spec.Containers[0].VolumeMounts {
			if m.Name == v.Name {
				mounted = m.MountPath
			}
		}
	}
	if mounted != datamove.EndpointDirectory {
		t.Errorf("the definition is in %q: %+v", mounted, pod.Spec)
	}
}

// The launcher of a running machine need not send its disk to another node.
func TestPlaceOf_diskOfARunningMachineIsTheMachinesNode(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, kubevirtv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	instance := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}}
	instance.Status.NodeName = "node-z"
	starting := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "starting"}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: nodeNamed("node-v")}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(instance, starting, claim, volume).Build()
	m := &Mover{Live: live, Cluster: live, Clock: clock.RealClock{}}
	for name, c := range map[string]struct {
		snapshotType string
		config       map[string]string
		want         string
	}{
		"a running machine":      {velerov2.SnapshotMachineBackup, map[string]string{datamove.ConfigMachine: "web"}, "node-z"},
		"one that has no node":   {velerov2.SnapshotMachineBackup, map[string]string{datamove.ConfigMachine: "starting"}, "node-v"},
		"one that does not run":  {velerov2.SnapshotMachineBackup, map[string]string{datamove.ConfigMachine: "off"}, "node-v"},
		"endpoints":              {velerov2.SnapshotMachineBackup, map[string]string{datamove.ConfigMachine: "web", datamove.ConfigSource: datamove.SourceEndpoints}, "node-v"},
		"a snapshot of a volume": {velerov2.SnapshotCSI, map[string]string{datamove.ConfigMachine: "web"}, "node-v"},
	} {
		o := upload()
		o.Spec.SnapshotType, o.Spec.DataMoverConfig = c.snapshotType, c.config
		place, wait, err := m.placeOf(t.Context(), o, &Object{})
		if err != nil || wait != 0 || onlyNode(place.nodes) != c.want || place.preferred != (c.snapshotType == velerov2.SnapshotMachineBackup) {
			t.Errorf("%s: %v, %v, %v", name, place, wait, err)
		}
	}
}

func TestChooseNodes(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c", "d"}
	onNodes := func(names ...string) *corev1.NodeSelector {
		s := &corev1.NodeSelector{}
		for _, name := range names {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, nodeNamed(name).NodeSelectorTerms...)
		}
		return s
	}
	first := func(names ...string) string { // which of them is always chosen
		return slices.MinFunc(names, func(x, y string) int { return compareNodes(node(x, nil), node(y, nil)) })
	}
	shelf := func(oneNode bool, names ...string) *storagePlace {
		return &storagePlace{nodes: onNodes(names...), oneNode: oneNode}
	}
	for name, c := range map[string]struct {
		volume  volumePlace
		storage *storagePlace
		// nodes take pods; nil: all.
		nodes, want []string
	}{
		"anywhere":               {want: all},
		"a volume of some nodes": {volume: volumePlace{nodes: onNodes("a", "b")}, want: []string{"a", "b"}},
		"of nodes that take no pods": {
			volume: volumePlace{nodes: onNodes("a")},
			nodes:  []string{"b", "c"}, want: []string{"b", "c"},
		},
		"a storage of some nodes": {storage: shelf(false, "b", "c"), want: []string{"b", "c"}},
		"of one node at a time":   {storage: shelf(true, "b", "c"), want: []string{first("b", "c")}},
		"both": {
			volume:  volumePlace{nodes: onNodes("a", "b")},
			storage: shelf(false, "b", "c"), want: []string{"b"},
		},
		"both, one node at a time": {
			volume:  volumePlace{nodes: onNodes("a", "b", "c")},
			storage: shelf(true, "b", "c", "d"), want: []string{first("b", "c")},
		},
		"no node reaches both": {
			volume:  volumePlace{nodes: onNodes("a")},
			storage: shelf(true, "b"), want: []string{"a"},
		},
		"a machine on the storage's node": {
			volume:  volumePlace{nodes: onNodes("b"), preferred: true},
			storage: shelf(true, "b", "c"), want: []string{"b"},
		},
		"a machine on another node": {
			volume:  volumePlace{nodes: onNodes("a"), preferred: true},
			storage: shelf(false, "b", "c"), want: []string{"b", "c"},
		},
		"on another node, a storage of one node": {
			volume:  volumePlace{nodes: onNodes("a"), preferred: true},
			storage: shelf(true, "b", "c"), want: []string{first("b", "c")},
		},
		"a machine on a node that takes no pods": {
			volume: volumePlace{nodes: onNodes("a"), preferred: true},
			nodes:  []string{"b", "c"}, want: []string{"b", "c"},
		},
		"a machine, and a storage that nobody uses": {
			volume:  volumePlace{nodes: onNodes("a"), preferred: true},
			storage: shelf(true, "e"), want: []string{"a"},
		},
		"a volume and a storage whose node is closed": {
			volume:  volumePlace{nodes: onNodes("a")},
			storage: shelf(true, "a"), nodes: []string{"b"}, want: []string{"b"},
		},
	} {
		var nodes []*corev1.Node
		for _, name := range all {
			n := node(name, nil)
			n.Spec.Unschedulable = c.nodes != nil && !slices.Contains(c.nodes, name)
			nodes = append(nodes, n)
		}
		current := settings.Default()
		if got := namesOf((&Mover{}).newSurvey(nodes, &current).chooseNodes(c.volume, c.storage)); !slices.Equal(got,
			c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func namesOf(c choice) []string {
	var names []string
	for _, n := range c.nodes {
		names = append(names, n.Name)
	}
	return names
}

// Nodes that take no object by the settings must not keep objects that others may take.
func TestChooseNodes_takenByNodesWithPlacesFirst(t *testing.T) {
	t.Parallel()
	closed := node("closed", map[string]string{"name": "closed"})
	closed.Spec.Unschedulable = true
	nodes := []*corev1.Node{
		node("a", map[string]string{"name": "a"}), node("b", map[string]string{"name": "b"}),
		closed,
	}
	idle, busy := nodes[0], nodes[1]
	if compareNodes(idle, busy) > 0 {
		idle, busy = busy, idle
	}
	current, err := settings.Decode("concurrency: {nodes: [{nodeSelector: {matchLabels: {name: " + idle.Name + "}}, perNode: 0}]}")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		volume  volumePlace
		storage *storagePlace
		want    string
	}{
		"a machine on the node": {
			volumePlace{nodes: nodeNamed(idle.Name), preferred: true},
			nil,
			busy.Name,
		},
		"a storage of one node, the first one": {volumePlace{}, &storagePlace{oneNode: true}, busy.Name},
		"both": {
			volumePlace{nodes: nodeNamed(idle.Name), preferred: true},
			&storagePlace{oneNode: true}, busy.Name,
		},
		"a storage that is in use on the node": {
			volumePlace{},
			&storagePlace{oneNode: true, nodes: nodeNamed(idle.Name)}, "",
		},
		"a volume that only that node reaches": {volumePlace{nodes: nodeNamed(idle.Name)}, nil, ""},
		"a volume that a closed node has":      {volumePlace{nodes: nodeNamed("closed")}, nil, busy.Name},
		"a machine on a node that is closed": {
			volumePlace{nodes: nodeNamed("closed"), preferred: true},
			nil,
			busy.Name,
		},
		"a machine on this node, for certainty": {
			volumePlace{nodes: nodeNamed(busy.Name), preferred: true},
			nil,
			busy.Name,
		},
	} {
		s := (&Mover{}).newSurvey(nodes, &current)
		got := freestNode(s.chooseNodes(c.volume, c.storage).nodes, s.freePlaces(nil))
		if (got == nil) != (c.want == "") || got != nil && got.Name != c.want {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// Where Varve is the built-in data mover, another one may have taken an object before.
func TestIsOurs(t *testing.T) {
	t.Parallel()
	current := settings.Default()
	current.BuiltIn = true
	for name, c := range map[string]struct {
		view Object
		want bool
	}{
		"waits":                   {Object{Mover: "velero", Phase: velerov2.PhaseNew}, true},
		"taken by the node agent": {Object{Mover: "velero", Phase: velerov2.PhaseAccepted, Driver: "node-a"}, false},
		"taken by Varve": {Object{
			Mover: "velero", Phase: velerov2.PhaseAccepted, Driver: "node-a",
			Finalizer: true,
		}, true},
		"canceled by Varve": {Object{
			Mover: "velero", Phase: velerov2.PhaseCanceling,
			Memory: memory{Ending: ended(velerov2.PhaseCanceled, 0)},
		}, true},
		"Varve's, somebody's phase": {Object{Mover: "varve", Phase: velerov2.PhaseAccepted}, true},
		"another mover's":           {Object{Mover: "another", Phase: velerov2.PhaseNew}, false},
		"in another namespace": {Object{
			Mover: "varve", Phase: velerov2.PhaseNew,
			NamespacedName: types.NamespacedName{Namespace: "app"},
		}, false},
	} {
		if c.view.Namespace == "" {
			c.view.Namespace = "velero"
		}
		if got := isOurs(&current, &c.view); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Objects go where the most places are free, so that they spread over the nodes.
func TestFreestNode_spreads(t *testing.T) {
	t.Parallel()
	nodes := []*corev1.Node{node("a", nil), node("b", nil), node("c", nil)}
	free := map[string]int{"a": 2, "b": 2, "c": 1}
	var got []string
	for n := freestNode(nodes, free); n != nil; n = freestNode(nodes, free) {
		got = append(got, n.Name)
		free[n.Name]--
	}
	if want := []string{"a", "b", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The cache may be behind what this process has given away.
func TestPlaces_countWhatTheCacheDoesNotHaveYet(t *testing.T) {
	t.Parallel()
	waiting := openObject{view: Object{UID: "u1", Phase: velerov2.PhaseNew}}
	taken := openObject{view: Object{UID: "u1", Phase: velerov2.PhaseAccepted, Driver: "a"}}
	var p places
	p.giveTo(&Object{UID: "u1"}, "a", now)
	p.markWritten("u1")
	for _, step := range []struct {
		object openObject
		at     time.Time
		want   int
	}{{waiting, now.Add(2 * placeMemory), 1}, {taken, now, 1}, {waiting, now, 0}} {
		if got := p.countTaken([]openObject{step.object}, step.at)["a"]; got != step.want {
			t.Errorf("%s: %d places taken, want %d", step.object.view.Phase, got, step.want)
		}
	}
	p.giveTo(&Object{UID: "u2"}, "b", now)
	if p.countTaken(nil, now); len(p.given) != 0 {
		t.Errorf("an object that is gone has a place: %v", p.given)
	}
	p.giveTo(&Object{UID: "u1"}, "a", now)
	if p.countTaken([]openObject{waiting}, now.Add(2*placeMemory)); len(p.given) != 0 {
		t.Errorf("a place that nobody took is kept: %v", p.given)
	}
}

// A pod that is evicted because the index does not fit is evicted again.
func TestMoverPod_hasRoomForTheIndex(t *testing.T) {
	t.Parallel()
	for contents, want := range map[int64]string{0: "2Gi", 40_000_000: "7427483648"} {
		pod := podFor(t, func(in *podInput) { in.contents = contents })
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil })
		if size := pod.Spec.Volumes[i].EmptyDir.SizeLimit; size.Cmp(resource.MustParse(want)) != 0 {
			t.Errorf("%d contents: %s, want %s", contents, size, want)
		}
	}
}

func TestMoverPod_capabilitiesAreThoseOfItsWork(t *testing.T) {
	t.Parallel()
	block := func(in *podInput) { in.volume.VolumeMode = corev1.PersistentVolumeBlock }
	download := func(in *podInput) {
		in.object = &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "r1", UID: "u1"}}
		in.view.Kind, in.view.SnapshotID = datamove.Download, "s"
	}
	for name, c := range map[string]struct {
		edit []func(*podInput)
		adds []corev1.Capability
		at   string
	}{
		"files, read":  {nil, []corev1.Capability{"DAC_READ_SEARCH"}, datamove.VolumeDirectory},
		"files, write": {[]func(*podInput){download}, []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"}, datamove.VolumeDirectory},
		"disk, read":   {[]func(*podInput){block}, nil, datamove.VolumeDevice},
		"disk, write":  {[]func(*podInput){download, block}, nil, datamove.VolumeDevice},
		"tunnel":       {[]func(*podInput){func(in *podInput) { in.volume = Volume{} }}, nil, ""},
	} {
		pod := podFor(t, func(in *podInput) {
			for _, e := range c.edit {
				e(in)
			}
		})
		container := pod.Spec.Containers[0]
		if got := container.SecurityContext.Capabilities.Add; !slices.Equal(got, c.adds) {
			t.Errorf("%s: %v", name, got)
		}
		at := ""
		for _, d := range container.VolumeDevices {
			at = d.DevicePath
		}
		for _, m := range container.VolumeMounts {
			if m.Name == "volume" {
				at = m.MountPath
				if m.ReadOnly != strings.HasSuffix(name, "read") {
					t.Errorf("%s: read-only is %v", name, m.ReadOnly)
				}
			}
		}
		if at != c.at {
			t.Errorf("%s: the volume is at %q", name, at)
		}
	}
}

func TestMoverPod_comparesWithACloneOfAnImage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ofImage, upload bool
		want            bool
	}{
		"a clone of an image": {true, false, true}, "an empty volume": {false, false, false},
		"an upload": {true, true, false},
	} {
		pod := podFor(t, func(in *podInput) {
			in.volume.VolumeMode, in.volume.OfImage = corev1.PersistentVolumeBlock, c.ofImage
			if !c.upload {
				in.object = &velerov2.DataDownload{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "r1", UID: "u1"}}
				in.view.Kind, in.view.SnapshotID = datamove.Download, "s"
			}
		})
		job, err := datamove.DecodeJob(pod.Spec.Containers[0].Env[0].Value)
		if err != nil || job.SkipEqual != c.want {
			t.Errorf("%s: %+v, %v", name, job, err)
		}
	}
}

func TestMoverPod_runsWhereItsVolumeIs(t *testing.T) {
	t.Parallel()
	zone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}}}}}
	for _, elsewhere := range []bool{false, true} {
		pod := podFor(t, func(in *podInput) {
			in.volume.NodeAffinity = zone
			if elsewhere {
				in.elsewhere = zone
			}
		})
		required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		for _, node := range []*corev1.Node{node("node-a", nil), node("node-z", map[string]string{"zone": "z"})} {
			if got, want := nodeselector.Selects(required, node), (node.Name == "node-z") == elsewhere; got != want {
				t.Errorf("elsewhere %v, %s: %v", elsewhere, node.Name, got)
			}
		}
	}
}

func node(name string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
	return n
}

func TestStateOfPod_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	status := func(s corev1.ContainerStatus) corev1.PodStatus {
		s.Name = containerName
		return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{s}}
	}
	waits := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	died := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "bus error"}}
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   PodState
	}{
		"unschedulable":      {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"}}}, PodState{Trouble: "Unschedulable: no node"}},
		"no image":           {status(corev1.ContainerStatus{State: waits("ImagePullBackOff", "not found")}), PodState{Trouble: "ImagePullBackOff: not found"}},
		"being made":         {status(corev1.ContainerStatus{State: waits("ContainerCreating", "")}), PodState{}},
		"runs":               {status(corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}), PodState{Running: true}},
		"runs again":         {status(corev1.ContainerStatus{RestartCount: 2, LastTerminationState: died, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}), PodState{Running: true, Deaths: 2, LastWords: "Error: bus error"}},
		"between two starts": {status(corev1.ContainerStatus{RestartCount: 2, LastTerminationState: died, State: waits("CrashLoopBackOff", "")}), PodState{Deaths: 3, LastWords: "Error: bus error", Trouble: "CrashLoopBackOff: Error: bus error"}},
		"evicted":            {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk pressure"}, PodState{Ended: true, LastWords: "Evicted: disk pressure"}},
	} {
		pod := &corev1.Pod{Status: c.status}
		if diff := cmp.Diff(c.want, *stateOfPod(pod)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestStateOfPod_knowsTheNodeThatItWasMadeFor(t *testing.T) {
	t.Parallel()
	zone := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z"}}}}}}
	for name, c := range map[string]struct {
		elsewhere *corev1.NodeSelector
		want      string
	}{
		"the node that has its place":       {nil, "node-a"},
		"a zone":                            {zone, ""},
		"a node that the volume was put on": {nodeNamed("node-z"), ""}, // the next driver leaves it there
	} {
		pod := podFor(t, func(in *podInput) { in.elsewhere = c.elsewhere })
		if got := stateOfPod(pod).Pinned; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A node joins, and its pod runs before the cache has the node.
func TestFindNodeState_believesTheAPIServerAlone(t *testing.T) {
	t.Parallel()
	m := &Mover{Live: fake.NewClientBuilder().WithObjects(node("node-new", nil)).Build()}
	cached := []*corev1.Node{node("node-a", nil)}
	for name, gone := range map[string]bool{"node-a": false, "node-new": false, "node-gone": true, "": true} {
		got, err := m.findNodeState(t.Context(), cached, name)
		if err != nil || got.Name != name || got.Gone != gone {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	m.Live = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("connection refused")
	}})
	if _, err := m.findNodeState(t.Context(), cached, "node-new"); err == nil {
		t.Error("an API server that does not answer says that a node is gone")
	}
}

func TestNodes_thatCannotRunPodsTakeNothing(t *testing.T) {
	t.Parallel()
	tainted := corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}
	cordoned, silent := node("n", nil), node("n", nil)
	cordoned.Spec.Unschedulable = true
	silent.Status.Conditions[0].Status = corev1.ConditionUnknown
	for name, c := range map[string]struct {
		node *corev1.Node
		with []corev1.Toleration
		want bool
	}{
		"ready":                     {node("n", nil), nil, true},
		"linux":                     {node("n", map[string]string{corev1.LabelOSStable: "linux"}), nil, true},
		"windows":                   {node("n", map[string]string{corev1.LabelOSStable: "windows"}), nil, false},
		"cordoned":                  {cordoned, nil, false},
		"not ready":                 {silent, nil, false},
		"tainted":                   {node("n", nil, tainted), nil, false},
		"tainted, tolerated":        {node("n", nil, tainted), []corev1.Toleration{{Key: "k", Value: "v"}}, true},
		"tainted, another value":    {node("n", nil, tainted), []corev1.Toleration{{Key: "k", Value: "w"}}, false},
		"tainted, everything goes":  {node("n", nil, tainted), []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, true},
		"tainted, another effect":   {node("n", nil, tainted), []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, false},
		"a taint that is only wish": {node("n", nil, corev1.Taint{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}), nil, true},
		"out of service":            {node("n", nil, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}), []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, false},
	} {
		if got := takesPods(c.node, c.with); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestMemory_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	m := memory{Pod: "p", Lost: "q", Deaths: 2, LastWords: "w", RetryAt: at(0), Stalled: at(0), Finishing: at(0), Ending: ended(velerov2.PhaseFailed, 0), Disposed: true}
	got, err := decodeMemory(m.encode())
	if err != nil || got.encode() != m.encode() || got.Ending.Message != "why" {
		t.Errorf("%+v, %v", got, err)
	}
	if datamove.CountedPod(m.encode()) != m.Pod || datamove.CountedPod("") != "" || datamove.CountedPod("x") != "" {
		t.Error("mover pods read another pod's UID")
	}
	if (memory{}).encode() != "" {
		t.Error("nothing is remembered, and written")
	}
	for text, foreign := range map[string]bool{
		"x": true, `{}`: true, `{"version":1,"deaths":-1}`: true, `{"version":1,"ending":{"phase":"Bogus","since":null}}`: true, `{"version":2}`: false,
	} {
		_, err := decodeMemory(text)
		if bad := new(badMemoryError); err == nil || errors.As(err, &bad) != foreign {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What somebody else has written to the annotation ends an object that a driver has taken, and is nothing to one that nobody has.
func TestViewOf_badMemory(t *testing.T) {
	t.Parallel()
	o := upload()
	o.Annotations = map[string]string{datamove.AnnotationDriver: "x"}
	if v, err := viewOf(o); err != nil || v.Memory != (memory{}) {
		t.Errorf("new: %+v, %v", v.Memory, err)
	}
	o.Status.Phase, o.Status.AcceptedByNode = velerov2.PhaseInProgress, "node-a"
	v, err := viewOf(o)
	if err != nil || v.Memory.Ending == nil || v.Memory.Ending.Phase != velerov2.PhaseFailed || !strings.Contains(v.Memory.Ending.Message, datamove.AnnotationDriver) {
		t.Errorf("in progress: %+v, %v", v.Memory, err)
	}
	o.Status.Phase = velerov2.PhaseCompleted
	if v, err := viewOf(o); err != nil || v.Memory != (memory{}) {
		t.Errorf("completed: %+v, %v", v.Memory, err)
	}
	o.Annotations[datamove.AnnotationDriver] = `{"version":2}`
	if _, err := viewOf(o); err == nil {
		t.Error("a later version's was read")
	}
}
