//go:build controlplane

package admission

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	"github.com/varvebackup/varve/internal/handler/backup/checkpoint"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

const (
	notThisNode = "a handler writes only about its own node"
	unbound     = "a handler's token must be bound to its pod and node"
)

// placed is the objects of one machine, all of which belong to node-b.
type placed struct {
	vmi      *kubevirtv1.VirtualMachineInstance
	backup   *backupv1.VirtualMachineBackup
	tracker  *backupv1.VirtualMachineBackupTracker
	snapshot *vmsnapshotv1.VirtualMachineSnapshot
}

// place creates an instance that runs on node-b, a backup of it that is being copied, its tracker with two disks, and a
// snapshot of it whose guest is to be frozen.
func place(t *testing.T) placed {
	t.Helper()
	ns := cluster.Namespace(t)
	controller := cluster.Client(t, controlplane.Controller)
	p := placed{newInstance(ns), newBackup(ns), newTracker(ns), gen.MachineSnapshot(gen.Meta(ns, "snapshot"))}
	for _, o := range []client.Object{p.vmi, p.backup, p.tracker, p.snapshot} {
		admitted(t, controller.Create(t.Context(), o))
	}
	p.vmi.Status.Phase, p.vmi.Status.NodeName = kubevirtv1.PhaseRunning, "node-b"
	p.vmi.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
		State: kubevirtv1.ChangedBlockTrackingEnabled, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "backup"},
	}
	p.vmi.Status.ActivePods = map[types.UID]string{"launcher-b": "node-b"}
	p.vmi.Status.VolumeStatus = []kubevirtv1.VolumeStatus{{
		Name: "u", Phase: kubevirtv1.VolumeAttachedToNode, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodName: "attach", AttachPodUID: "mine"},
	}}
	p.backup.Status = backupv1.VirtualMachineBackupStatus{
		Phase: backupv1.BackupCopying, NodeName: "node-b", SourceName: "vm", InstanceUID: p.vmi.UID, Directory: "vm/backup",
		CheckpointName: "tracker-2", ReplacesCheckpoint: "tracker-1", TrackerUID: p.tracker.UID,
		BaseCheckpoint: &backupv1.Checkpoint{Name: "tracker-1", CreationTime: metav1.Now().Rfc3339Copy(), Disks: []string{"root", "data"}},
		PVCName:        "target", PVCUID: "target-1", PhaseDeadline: ptr.To(metav1.Now().Rfc3339Copy()),
	}
	p.tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{
		Name: "tracker-1", CreationTime: metav1.Now().Rfc3339Copy(), Disks: []string{"root", "data"},
		Volumes: []backupv1.CheckpointVolume{{VolumeName: "root", DiskTarget: "vda"}, {VolumeName: "data", DiskTarget: "vdb"}},
	}
	p.snapshot.Status = &vmsnapshotv1.VirtualMachineSnapshotStatus{
		Phase: vmsnapshotv1.InProgress, NodeName: "node-b", InstanceUID: p.vmi.UID,
		Quiesce: &vmsnapshotv1.Quiesce{
			Request:     vmsnapshotv1.FreezeRequest,
			RequestTime: ptr.To(metav1.Now().Rfc3339Copy()),
		},
	}
	for _, o := range []client.Object{p.vmi, p.backup, p.tracker, p.snapshot} {
		admitted(t, controller.Status().Update(t.Context(), o))
	}
	return p
}

// machine returns the reference that a handler's events are about.
func (p *placed) machine() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Namespace: p.vmi.Namespace, Name: p.vmi.Name}
}

// attack is a write that a handler must not make.
type attack struct {
	name string
	edit func(*placed) client.Object
	// says is the refusal on the object's own node. Empty: a handler may make this edit there.
	says string
}

var attacks = []attack{
	{"another pod holds the volume", func(p *placed) client.Object {
		p.vmi.Status.VolumeStatus[0].HotplugVolume.AttachPodUID = "victims"
		return p.vmi
	}, "only the controller names attachment pods"},
	{"a volume appears", func(p *placed) client.Object {
		p.vmi.Status.VolumeStatus = append(p.vmi.Status.VolumeStatus, kubevirtv1.VolumeStatus{
			Name: "v", Phase: kubevirtv1.VolumeAttachedToNode, HotplugVolume: &kubevirtv1.HotplugVolumeStatus{AttachPodUID: "victims"},
		})
		return p.vmi
	}, "only the controller names attachment pods"},
	{"the volume is mounted", func(p *placed) client.Object {
		p.vmi.Status.VolumeStatus[0].Phase = kubevirtv1.VolumeMountedToPod
		return p.vmi
	}, ""},
	{"the instance moves to another node", func(p *placed) client.Object { p.vmi.Status.NodeName = "node-a"; return p.vmi }, notThisNode},
	{"another launcher", func(p *placed) client.Object {
		p.vmi.Status.ChangedBlockTracking = &kubevirtv1.ChangedBlockTrackingStatus{
			State: kubevirtv1.ChangedBlockTrackingEnabled, BackupStatus: &kubevirtv1.InstanceBackupStatus{BackupName: "backup"},
		}
		p.vmi.Status.ActivePods = map[types.UID]string{"victims": "node-b"}
		return p.vmi
	}, "only the controller names launcher pods"},
	{"the lock is released", func(p *placed) client.Object {
		p.vmi.Status.ChangedBlockTracking.BackupStatus = nil
		return p.vmi
	}, "the lock of a backup"},
	{"the copy is complete", func(p *placed) client.Object { p.backup.Status.Phase = backupv1.BackupCopied; return p.backup }, ""},
	{"the backup is done", func(p *placed) client.Object { p.backup.Status.Phase = backupv1.BackupDone; return p.backup }, "a handler takes a backup"},
	{"the backup is of another machine", func(p *placed) client.Object { p.backup.Status.SourceName = "victim"; return p.backup }, "which machine a backup is of"},
	{"the backup is of another instance", func(p *placed) client.Object { p.backup.Status.InstanceUID = "victim"; return p.backup }, "which machine a backup is of"},
	{"the backup moves another tracker", func(p *placed) client.Object { p.backup.Status.TrackerUID = "victim"; return p.backup }, "which machine a backup is of"},
	{"the backup replaces another checkpoint", func(p *placed) client.Object { p.backup.Status.ReplacesCheckpoint = "tracker-0"; return p.backup }, "which machine a backup is of"},
	{"the backup is on another node", func(p *placed) client.Object { p.backup.Status.NodeName = "node-a"; return p.backup }, notThisNode},
	{"the backup's files are elsewhere", func(p *placed) client.Object { p.backup.Status.Directory = "victim/backup"; return p.backup }, "which machine a backup is of"},
	{"the backup is on another claim", func(p *placed) client.Object { p.backup.Status.PVCUID = "victim"; return p.backup }, "which machine a backup is of"},
	{"the backup has all the time", func(p *placed) client.Object { p.backup.Status.PhaseDeadline = nil; return p.backup }, "which machine a backup is of"},
	{"the copy is reported", func(p *placed) client.Object {
		now := metav1.Now().Rfc3339Copy()
		p.backup.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", Type: backupv1.Full, File: "vm/backup/root.qcow2"}}
		p.backup.Status.ManifestSHA256, p.backup.Status.StartTimestamp, p.backup.Status.MovedBytes, p.backup.Status.Moved = "abc", &now, 4096, "4Ki"
		p.backup.Status.Progress, p.backup.Status.FrozenMillis = &backupv1.Progress{Percent: "10%"}, ptr.To[int64](7)
		p.backup.Status.BackupType, p.backup.Status.Type, p.backup.Status.Message, p.backup.Status.CopyMillis, p.backup.Status.SealMillis = backupv1.Full, backupv1.Full, "m", 1, 1
		return p.backup
	}, ""},
	{"the result is decided", func(p *placed) client.Object { p.backup.Status.Result = backupv1.BackupSucceeded; return p.backup }, "which machine a backup is of"},
	{"the tracker moves", func(p *placed) client.Object {
		p.tracker.Status.LatestCheckpoint.Name = "forged"
		return p.tracker
	}, "the only change that a handler makes to a tracker"},
	{"the tracker gets a disk", func(p *placed) client.Object {
		p.tracker.Status.LatestCheckpoint.Disks = append(p.tracker.Status.LatestCheckpoint.Disks, "forged")
		return p.tracker
	}, "the only change that a handler makes to a tracker"},
	{"the tracker's time is set back", func(p *placed) client.Object {
		at := metav1.Now().Rfc3339Copy()
		p.tracker.Status.NewestCheckpointTime = &at
		return p.tracker
	}, "the only change that a handler makes to a tracker"},
	{"a volume of the tracker is another device", func(p *placed) client.Object {
		p.tracker.Status.LatestCheckpoint.Volumes[0].DiskTarget = "forged"
		return p.tracker
	}, "the only change that a handler makes to a tracker"},
	{"a disk is discarded", func(p *placed) client.Object {
		checkpoint.Discard(&p.tracker.Status, "tracker-1", []backupv1.DiscardedDisk{{Volume: "data", Reason: backupv1.FullBitmapLost}})
		return p.tracker
	}, ""},
	{"the guest is frozen", func(p *placed) client.Object {
		p.snapshot.Status.Quiesce.State, p.snapshot.Status.Quiesce.Message = vmsnapshotv1.Frozen, "m"
		return p.snapshot
	}, ""},
	{"the thaw is asked for", func(p *placed) client.Object {
		p.snapshot.Status.Quiesce.Request = vmsnapshotv1.ThawRequest
		return p.snapshot
	}, "what became of the freeze"},
	{
		"nobody has asked for the freeze",
		func(p *placed) client.Object { p.snapshot.Status.Quiesce = nil; return p.snapshot },
		"what became of the freeze",
	},
	{"the freeze was asked for later", func(p *placed) client.Object {
		p.snapshot.Status.Quiesce.RequestTime = nil
		return p.snapshot
	}, "what became of the freeze"},
	{
		"the snapshot can be used",
		func(p *placed) client.Object { p.snapshot.Status.ReadyToUse = ptr.To(true); return p.snapshot },
		"what became of the freeze",
	},
	{
		"the snapshot is of another instance",
		func(p *placed) client.Object { p.snapshot.Status.InstanceUID = "victim"; return p.snapshot },
		"what became of the freeze",
	},
	{
		"the snapshot is of another node",
		func(p *placed) client.Object { p.snapshot.Status.NodeName = "node-a"; return p.snapshot }, notThisNode,
	},
	{"every disk is discarded", func(p *placed) client.Object { p.tracker.Status.LatestCheckpoint = nil; return p.tracker }, ""},
}

func TestHandler_hasNoAuthorityOverOtherNodes(t *testing.T) {
	t.Parallel()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			p := place(t)
			o := a.edit(&p)
			copied := func() client.Object { return o.DeepCopyObject().(client.Object) }
			_, tracker := o.(*backupv1.VirtualMachineBackupTracker)
			// A token without a node violates several policies, and it is undefined which one answers.
			why := []string{unbound}
			if !tracker {
				why = append(why, notThisNode)
			}
			if a.says != "" {
				why = append(why, a.says)
			}
			refused(t, cluster.Client(t, controlplane.UnboundHandler).Status().Update(t.Context(), copied()), why...)
			if !tracker { // for trackers the webhook checks the node
				refused(t, cluster.Client(t, controlplane.HandlerOn("node-a")).Status().Update(t.Context(), copied()), notThisNode)
			}
			err := cluster.Client(t, controlplane.HandlerOn("node-b")).Status().Update(t.Context(), copied())
			if a.says == "" {
				admitted(t, err)
				return
			}
			refused(t, err, a.says)
			admitted(t, cluster.Client(t, controlplane.Controller).Status().Update(t.Context(), copied()))
		})
	}
}

// TestHandler_tokenMustBeBound makes writes that only the policy for tokens denies a handler.
func TestHandler_tokenMustBeBound(t *testing.T) {
	t.Parallel()
	p := place(t)
	p.vmi.Labels = map[string]string{"mine": "yes"}
	p.tracker.Status.LatestCheckpoint = nil
	for name, write := range map[string]func(client.Client) error{
		"an event":   func(c client.Client) error { return c.Create(t.Context(), event(p.machine())) },
		"a label":    func(c client.Client) error { return c.Update(t.Context(), p.vmi.DeepCopy(), client.DryRunAll) },
		"a deletion": func(c client.Client) error { return c.Delete(t.Context(), p.backup, client.DryRunAll) },
		"a disk is discarded": func(c client.Client) error {
			return c.Status().Update(t.Context(), p.tracker.DeepCopy(), client.DryRunAll)
		},
	} {
		t.Log(name)
		refused(t, write(cluster.Client(t, controlplane.UnboundHandler)), unbound)
		admitted(t, write(cluster.Client(t, controlplane.HandlerOn("node-b"))))
	}
}

// event returns an event as a handler writes them.
func event(about corev1.ObjectReference) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, GenerateName: "event-"}, EventTime: metav1.NowMicro(),
		ReportingController: "varve-handler", ReportingInstance: "varve-handler-b", Action: "Start", Reason: "Started", Type: "Normal", Regarding: about,
	}
}

// TestHandler_tellsOfMachinesAlone: people rely on events to learn what happened, so a handler may write events only about what it does.
func TestHandler_tellsOfMachinesAlone(t *testing.T) {
	t.Parallel()
	p := place(t)
	handler := cluster.Client(t, controlplane.HandlerOn("node-b"))
	const text = "a handler writes events about nothing but"
	admitted(t, handler.Create(t.Context(), event(p.machine())))
	admitted(t, handler.Create(t.Context(), event(corev1.ObjectReference{
		APIVersion: "backup.kubevirt.io/v1alpha1", Kind: "VirtualMachineBackup", Namespace: p.vmi.Namespace, Name: p.backup.Name,
	})))
	pod := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.vmi.Namespace, Name: "database"}
	refused(t, handler.Create(t.Context(), event(pod)), text)
	refused(t, handler.Create(t.Context(), event(corev1.ObjectReference{Namespace: p.vmi.Namespace})), text)
	others := event(pod)
	admitted(t, cluster.Client(t, controlplane.Admin).Create(t.Context(), others))
	others.Series = &eventsv1.EventSeries{Count: 99, LastObservedTime: metav1.NowMicro()}
	refused(t, handler.Update(t.Context(), others), text)
	// The older API has the same events.
	refused(t, handler.Create(t.Context(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.vmi.Namespace, GenerateName: "event-"}, InvolvedObject: pod, Reason: "Failed", Type: "Warning",
	}), text)
}

// Clients send their token where an endpoint says, so a handler cannot write one. It reports about the volumes that have them.
// Only a deletion says that clients have the data of a backup in pull mode, and only if they could read it.
func TestHandler_completesAPullThatWasReadable(t *testing.T) {
	t.Parallel()
	const text = "complete when it is deleted while it is Ready"
	ns := cluster.Namespace(t)
	controller, handler := cluster.Client(t, controlplane.Controller), cluster.Client(t, controlplane.HandlerOn("node-b"))
	b := newBackup(ns)
	b.Spec.Mode, b.Spec.TokenSecretRef = backupv1.PullMode, ptr.To("token")
	b.Finalizers = []string{"varvebackup.io/test"}
	admitted(t, controller.Create(t.Context(), b))
	write := func(phase backupv1.BackupPhase, ready metav1.ConditionStatus) {
		t.Helper()
		b.Status.Phase, b.Status.NodeName = phase, "node-b"
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: backupv1.ConditionReady, Status: ready, Reason: "Test"})
		admitted(t, controller.Status().Update(t.Context(), b))
	}
	complete := func() error {
		copied := b.DeepCopy()
		copied.Status.Phase = backupv1.BackupCopied
		return handler.Status().Update(t.Context(), copied, client.DryRunAll)
	}
	write(backupv1.BackupServing, metav1.ConditionTrue)
	refused(t, complete(), text) // nobody has deleted it
	admitted(t, controller.Delete(t.Context(), b))
	admitted(t, controller.Get(t.Context(), client.ObjectKeyFromObject(b), b))
	admitted(t, complete())
	write(backupv1.BackupServing, metav1.ConditionFalse)
	refused(t, complete(), text)
	write(backupv1.BackupCopying, metav1.ConditionFalse)
	refused(t, complete(), text)
	b.Finalizers = nil
	admitted(t, controller.Update(t.Context(), b))
}

func TestHandler_leavesEndpointsAlone(t *testing.T) {
	t.Parallel()
	p := place(t)
	p.backup.Status.Phase = backupv1.BackupServing
	p.backup.Status.IncludedVolumes = []backupv1.IncludedVolume{{Name: "root", DataEndpoint: "https://a/data", MapEndpoint: "https://a/map"}, {Name: "new"}}
	tunnel := backupv1.PullTunnel{Address: "a:9090", ServerName: "a", Authorities: "PEM"}
	p.backup.Status.PullTunnels = []backupv1.VolumeTunnel{{Volume: "root", PullTunnel: tunnel}}
	admitted(t, cluster.Client(t, controlplane.Controller).Status().Update(t.Context(), p.backup))
	for name, c := range map[string]struct {
		edit func(*backupv1.VirtualMachineBackupStatus)
		says string
	}{
		"what it reports": {func(s *backupv1.VirtualMachineBackupStatus) {
			s.IncludedVolumes[0].VirtualBytes, s.Scratch = 1, &backupv1.ScratchSpace{UsedBytes: 1}
			s.ExcludedVolumes = []backupv1.ExcludedVolume{{Name: "iso", Reason: backupv1.ExcludedReadOnly}}
		}, ""},
		"the end":          {func(s *backupv1.VirtualMachineBackupStatus) { s.Phase = backupv1.BackupCopied }, ""},
		"another endpoint": {func(s *backupv1.VirtualMachineBackupStatus) { s.IncludedVolumes[0].DataEndpoint = "https://b/data" }, "only the controller writes the endpoints"},
		"another map":      {func(s *backupv1.VirtualMachineBackupStatus) { s.IncludedVolumes[0].MapEndpoint = "https://b/map" }, "only the controller writes the endpoints"},
		"an endpoint":      {func(s *backupv1.VirtualMachineBackupStatus) { s.IncludedVolumes[1].DataEndpoint = "https://b/data" }, "only the controller writes the endpoints"},
		"another volume's": {func(s *backupv1.VirtualMachineBackupStatus) {
			s.IncludedVolumes = append(s.IncludedVolumes, backupv1.IncludedVolume{Name: "third", DataEndpoint: "https://a/data", MapEndpoint: "https://a/map"})
		}, "only the controller writes the endpoints"},
		"a tunnel": {func(s *backupv1.VirtualMachineBackupStatus) {
			s.PullTunnel = &backupv1.PullTunnel{Address: "b:9090", ServerName: "b", Authorities: "PEM"}
		}, "only the controller writes which machine"},
		"a volume's tunnel": {func(s *backupv1.VirtualMachineBackupStatus) {
			s.PullTunnels = append(s.PullTunnels, backupv1.VolumeTunnel{Volume: "new", PullTunnel: tunnel})
		}, "only the controller writes which machine"},
		"a volume's far end": {func(s *backupv1.VirtualMachineBackupStatus) { s.PullTunnels[0].Address = "b:9090" }, "only the controller writes which machine"},
		"no tunnels":         {func(s *backupv1.VirtualMachineBackupStatus) { s.PullTunnels = nil }, "only the controller writes which machine"},
		"authorities":        {func(s *backupv1.VirtualMachineBackupStatus) { s.Cert = "PEM" }, "only the controller writes which machine"},
		"back":               {func(s *backupv1.VirtualMachineBackupStatus) { s.Phase = backupv1.BackupStarting }, "a handler takes a backup"},
	} {
		b := p.backup.DeepCopy()
		c.edit(&b.Status)
		err := cluster.Client(t, controlplane.HandlerOn("node-b")).Status().Update(t.Context(), b, client.DryRunAll)
		if t.Log(name); c.says == "" {
			admitted(t, err)
			continue
		}
		refused(t, err, c.says)
	}
}

// A handler cannot change a backup that has ended or that is currently the controller's.
func TestHandler_leavesOtherPhasesAlone(t *testing.T) {
	t.Parallel()
	for from, to := range map[backupv1.BackupPhase]backupv1.BackupPhase{
		backupv1.BackupPending: backupv1.BackupStarting, backupv1.BackupAttaching: backupv1.BackupCopied, backupv1.BackupCopyFailed: backupv1.BackupCopied,
		backupv1.BackupPruned: backupv1.BackupDone, backupv1.BackupFailed: backupv1.BackupPruning, backupv1.BackupStarting: backupv1.BackupPruned,
	} {
		p := place(t)
		p.backup.Status.Phase = from
		admitted(t, cluster.Client(t, controlplane.Controller).Status().Update(t.Context(), p.backup))
		p.backup.Status.Phase = to
		refused(t, cluster.Client(t, controlplane.HandlerOn("node-b")).Status().Update(t.Context(), p.backup), "a handler takes a backup")
	}
}

// TestHandler_tokenOfAPodNamesItsNode uses real tokens: the API server itself adds the node of their pod.
func TestHandler_tokenOfAPodNamesItsNode(t *testing.T) {
	t.Parallel()
	admitted(t, cluster.InstallRoles(t.Context()))
	admin := cluster.Client(t, controlplane.Admin)
	for _, node := range []string{"node-a", "node-b"} {
		admitted(t, admin.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}))
	}
	p := place(t)
	// The handler's role allows it to patch an instance's status, and nothing else.
	mounted := func(node string) error {
		now := p.vmi.DeepCopy()
		now.Status.VolumeStatus[0].Phase = kubevirtv1.VolumeMountedToPod
		return withToken(t, node).Status().Patch(t.Context(), now, client.MergeFrom(p.vmi))
	}
	refused(t, mounted(""), unbound, notThisNode)
	refused(t, withToken(t, "").Create(t.Context(), event(p.machine())), unbound)
	refused(t, mounted("node-a"), notThisNode)
	admitted(t, mounted("node-b"))
}

// withToken returns a client with a token of the handler's service account, bound to a pod on the node. With node "" it is not bound.
func withToken(t *testing.T, node string) client.Client {
	t.Helper()
	admin := cluster.Client(t, controlplane.Admin)
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, GenerateName: "varve-handler-"}}
		pod.Spec.NodeName, pod.Spec.ServiceAccountName = node, "varve-handler"
		pod.Spec.Containers = []corev1.Container{{Name: "handler", Image: "varve"}}
		admitted(t, admin.Create(t.Context(), pod))
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.SystemNamespace, Name: "varve-handler"}}
	admitted(t, admin.SubResource("token").Create(t.Context(), account, request))
	config := rest.AnonymousClientConfig(cluster.Config)
	config.BearerToken = request.Status.Token
	c, err := client.New(config, client.Options{Scheme: cluster.Scheme})
	admitted(t, err)
	return c
}
