package drive

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/nodeselector"
)

const (
	// containerName is the name of a mover pod's container.
	containerName = "mover"
	// graceSeconds is how long a mover may take to end: it keeps what it has stored. A cancel reaches it through the object, and does
	// not wait for that.
	graceSeconds = 30
	// tokenSeconds is how long a mover's token is valid. The kubelet renews it.
	tokenSeconds = 3600
	// snapshotTokenSeconds is the same for a driver's SnapshotMetadata service. The API server makes none that is shorter.
	snapshotTokenSeconds = 600
	// collectorPercent is how much garbage the mover may have, in percent of what it uses: its memory is as large as both. Go's own 100 costs
	// a third more memory and saves nothing that can be measured (docs/testing.md, move-peak).
	collectorPercent = "40"
	// annotationElsewhere is on a pod that goes to where its volume or its storage is, and not to its driver's node: the next driver leaves it.
	annotationElsewhere = layout.Prefix + "mover-elsewhere"
	// tunnelPortName is the name of the port where the launcher of a running machine calls.
	tunnelPortName = "tunnel"
	// tokenDirectory is where programs in pods look for their token.
	tokenDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// baseScratch is that of the emptyDir of a pod without what the index takes: the cache of data and of metadata, and a
// journal.
var baseScratch = resource.MustParse("2Gi")

// podInput is what a mover pod follows from.
type podInput struct {
	object     client.Object
	view       Object
	namespace  string // Varve's
	node       string // whose place the object has
	repository string
	volume     Volume
	image      datamove.PodImage
	settings   settings.Settings
	// storage is where the location is, if that is a directory; nil if it is not.
	storage *datamove.Storage
	// contents is how many contents the index of the repository has; 0: it is not known.
	contents int64
	// elsewhere are the nodes that the pod may run on if that is not the driver's; nil: the driver's.
	elsewhere *corev1.NodeSelector
}

// moverPod returns the pod that moves an object's data. It holds no token but its own account's, and one for the service that knows what has
// changed on its volume, if there is one. It mounts nothing but the volume, or
// what opens the endpoints or the tunnel of its disk, the access to its repository, and scratch space.
func moverPod(in podInput) *corev1.Pod {
	v := &in.view
	own := map[string]string{datamove.LabelObject: string(v.UID)}
	command := "upload"
	if v.Kind == datamove.Upload {
		own[datamove.LabelPodUpload] = labelValue(v.Name)
	} else {
		own[datamove.LabelPodDownload] = labelValue(v.Name)
		command = "download"
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: in.namespace, Name: datamove.ChildName(v.Kind, v.UID),
		Labels:      merged(in.settings.Pod.Labels, own),
		Annotations: merged(in.settings.Pod.Annotations, map[string]string{datamove.AnnotationOwner: ownerOf(v)}),
	}}
	pod.Spec = corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyOnFailure,
		TerminationGracePeriodSeconds: ptr.To[int64](graceSeconds),
		ServiceAccountName:            datamove.ServiceAccount,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		PriorityClassName:             in.settings.Pod.PriorityClassName,
		Tolerations:                   in.settings.Pod.Tolerations,
		NodeSelector:                  map[string]string{corev1.LabelOSStable: nodeselector.Linux},
		Affinity:                      &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: in.nodes()}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsUser: ptr.To[int64](0), RunAsGroup: ptr.To[int64](0),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{{
			Name: containerName, Image: in.image.Name, ImagePullPolicy: in.image.PullPolicy,
			Command:   []string{"/usr/bin/varve", "mover", command},
			Resources: withRequests(in.settings.Pod.Resources),
			Env: []corev1.EnvVar{
				{Name: datamove.JobVariable, Value: in.job().Encode()},
				fieldVariable(datamove.PodNameVariable, "metadata.name"), fieldVariable(datamove.PodUIDVariable, "metadata.uid"),
				{Name: "GOGC", Value: collectorPercent},
			},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Privileged: ptr.To(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities(v.Kind, in.volume)},
			},
		}},
	}
	if in.elsewhere != nil {
		pod.Annotations[annotationElsewhere] = "true"
	}
	in.addVolumes(&pod.Spec)
	if in.storage != nil {
		in.storage.Mount(&pod.ObjectMeta, &pod.Spec)
	}
	return pod
}

// defaultRequests are what a mover of one volume needs, as measured (docs/testing.md, move-peak). A pod without
// requests is the first one that a node short of memory evicts.
func defaultRequests() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("256Mi"), corev1.ResourceCPU: resource.MustParse("100m"),
	}
}

// withRequests adds the default requests for what the settings say nothing about. A limit alone is a request, too.
func withRequests(set corev1.ResourceRequirements) corev1.ResourceRequirements {
	all := *set.DeepCopy()
	for name, quantity := range defaultRequests() {
		_, requested := all.Requests[name]
		_, limited := all.Limits[name]
		if requested || limited {
			continue
		}
		if all.Requests == nil {
			all.Requests = corev1.ResourceList{}
		}
		all.Requests[name] = quantity
	}
	return all
}

// capabilities returns what files of any owner need: for reading them, or for writing them. A disk needs none.
func capabilities(kind datamove.Kind, volume Volume) []corev1.Capability {
	switch {
	case volume.Claim == "" || volume.VolumeMode == corev1.PersistentVolumeBlock:
		return nil
	case kind == datamove.Upload:
		return []corev1.Capability{"DAC_READ_SEARCH"}
	default:
		return []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"}
	}
}

// nodes returns the nodes that the pod may run on.
func (in *podInput) nodes() *corev1.NodeSelector {
	if in.elsewhere != nil {
		return in.elsewhere.DeepCopy()
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{in.node}}},
	}}}
}

func (in *podInput) job() datamove.Job {
	v := &in.view
	job := datamove.Job{
		Kind: v.Kind, Namespace: v.Namespace, Name: v.Name, UID: v.UID, VolumeMode: in.volume.VolumeMode, SnapshotID: v.SnapshotID, Parallel: in.settings.Parallel,
	}
	if download, ok := in.object.(*velerov2.DataDownload); ok {
		job.StoragePatience, _ = datamove.ReadStoragePatience(download.Spec.DataMoverConfig) // checked by viewOf
		job.ReadDefinition = datamove.ReadsDefinition(download.Spec.DataMoverConfig)
		job.SkipEqual = in.volume.OfImage && in.volume.VolumeMode == corev1.PersistentVolumeBlock
		job.Image = datamove.WritesImage(download.Spec.DataMoverConfig)
	}
	if upload, ok := in.object.(*velerov2.DataUpload); ok {
		job.StoragePatience, _ = datamove.ReadStoragePatience(upload.Spec.DataMoverConfig) // checked by viewOf
		job.SourceNamespace, job.SourceClaim, job.SourceUID = upload.Spec.SourceNamespace, upload.Spec.SourcePVC, in.volume.SourceUID
		job.DiskBytes, job.DiskChecksum = in.volume.DiskBytes, in.volume.DiskChecksum
		job.Endpoint, job.Tunnel, job.Snapshot = in.volume.Endpoint, in.volume.Tunnel, in.volume.Snapshot
		for _, key := range []string{datamove.LabelBackupName, datamove.LabelBackupUID} {
			if value := upload.Labels[key]; value != "" {
				job.Labels = merged(job.Labels, map[string]string{key: value})
			}
		}
		config := upload.Spec.DataMoverConfig
		if backup := config[datamove.ConfigMachineBackup]; backup != "" {
			job.Labels = merged(job.Labels, map[string]string{
				datamove.LabelMachineBackup: backup, datamove.LabelMachine: config[datamove.ConfigMachine],
			})
		}
		if group := config[datamove.ConfigGroup]; group != "" && in.volume.OfMachine() {
			job.Labels = merged(job.Labels, map[string]string{datamove.LabelGroup: group})
			job.Definition = in.storesDefinition()
		}
	}
	return job
}

// scratchSize returns the size of the emptyDir.
func (in *podInput) scratchSize() *resource.Quantity {
	size := baseScratch.DeepCopy()
	size.Add(*resource.NewQuantity(datamove.IndexScratch(in.contents), resource.BinarySI))
	return &size
}

// storesDefinition says whether the definition of the machine is stored with its disk.
func (in *podInput) storesDefinition() bool {
	upload, ok := in.object.(*velerov2.DataUpload)
	return ok && in.volume.OfMachine() && upload.Spec.DataMoverConfig[datamove.ConfigDefinition] != ""
}

func (in *podInput) addVolumes(spec *corev1.PodSpec) {
	c := &spec.Containers[0]
	mount := func(v corev1.Volume, mounts ...corev1.VolumeMount) {
		spec.Volumes = append(spec.Volumes, v)
		for i := range mounts {
			mounts[i].Name = v.Name
		}
		c.VolumeMounts = append(c.VolumeMounts, mounts...)
	}
	mount(tokenVolume(), corev1.VolumeMount{MountPath: tokenDirectory, ReadOnly: true})
	mount(corev1.Volume{Name: "repository", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: in.repository, DefaultMode: ptr.To[int32](0o400), Items: []corev1.KeyToPath{{Key: datamove.AccessKey, Path: datamove.AccessKey}},
	}}}, corev1.VolumeMount{MountPath: datamove.AccessDirectory, ReadOnly: true})
	mount(corev1.Volume{
		Name:         "scratch",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: in.scratchSize()}},
	},
		corev1.VolumeMount{MountPath: datamove.CacheDirectory, SubPath: "cache"}, corev1.VolumeMount{MountPath: "/tmp", SubPath: "tmp"})
	if in.volume.Endpoint != nil {
		keys := []string{datamove.EndpointTokenKey, datamove.EndpointAuthoritiesKey, datamove.EndpointEndedKey}
		if in.storesDefinition() {
			keys = append(keys, datamove.DefinitionKey)
		}
		mount(ownSecret(datamove.ChildName(in.view.Kind, in.view.UID), keys...),
			corev1.VolumeMount{MountPath: datamove.EndpointDirectory, ReadOnly: true})
	}
	if in.volume.Tunnel != nil {
		keys := []string{
			datamove.TunnelTokenKey, datamove.TunnelCertificateKey, datamove.TunnelPrivateKey,
			datamove.EndpointEndedKey,
		}
		if in.storesDefinition() {
			keys = append(keys, datamove.DefinitionKey)
		}
		mount(ownSecret(datamove.ChildName(in.view.Kind, in.view.UID), keys...),
			corev1.VolumeMount{MountPath: datamove.TunnelDirectory, ReadOnly: true})
		c.Ports = []corev1.ContainerPort{{Name: tunnelPortName, ContainerPort: datamove.TunnelPort, Protocol: corev1.ProtocolTCP}}
	}
	if s := in.volume.Snapshot; s != nil && s.Metadata != nil {
		mount(snapshotTokenVolume(s.Metadata.Audience), corev1.VolumeMount{MountPath: datamove.SnapshotTokenDirectory, ReadOnly: true})
	}
	if in.volume.Claim == "" {
		return
	}
	claim := corev1.Volume{Name: "volume", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: in.volume.Claim, ReadOnly: in.volume.ReadOnly},
	}}
	if in.volume.VolumeMode == corev1.PersistentVolumeBlock {
		mount(claim)
		c.VolumeDevices = []corev1.VolumeDevice{{Name: claim.Name, DevicePath: datamove.VolumeDevice}}
		return
	}
	mount(claim, corev1.VolumeMount{MountPath: datamove.VolumeDirectory, ReadOnly: in.view.Kind == datamove.Upload})
}

// ownSecret is the Secret that has a pod's name, which a controller makes when the pod is there. The kubelet waits for it.
func ownSecret(name string, keys ...string) corev1.Volume {
	source := &corev1.SecretVolumeSource{SecretName: name, DefaultMode: ptr.To[int32](0o400)}
	for _, key := range keys {
		source.Items = append(source.Items, corev1.KeyToPath{Key: key, Path: key})
	}
	return corev1.Volume{Name: "source", VolumeSource: corev1.VolumeSource{Secret: source}}
}

// tokenVolume is what the kubelet would mount by itself, with a token that is valid for an hour.
func tokenVolume() corev1.Volume {
	return corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o400),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}}
}

// snapshotTokenVolume is a token that the SnapshotMetadata service of a driver takes, and nobody else: the API server does not know its
// audience. The service asks the API server whether the account may get VolumeSnapshots in Varve's namespace.
func snapshotTokenVolume(audience string) corev1.Volume {
	return corev1.Volume{Name: "snapshot-metadata", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o400),
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Path: datamove.SnapshotTokenKey, Audience: audience, ExpirationSeconds: ptr.To[int64](snapshotTokenSeconds),
		}}},
	}}}
}

func fieldVariable(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

func ownerOf(v *Object) string {
	return datamove.FormatOwner(v.Kind, types.NamespacedName{Namespace: v.Namespace, Name: v.Name})
}

// merged returns both; b counts where they have the same key.
func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return all
}

// labelValue returns name as the value of a label, which is shorter than a name may be.
func labelValue(name string) string {
	const most = 63
	if len(name) <= most {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:most-9] + "-" + hex.EncodeToString(sum[:4])
}

// stateOfPod returns what decisions need of a mover pod.
func stateOfPod(p *corev1.Pod) *PodState {
	s := &PodState{
		Name: p.Name, Node: p.Spec.NodeName, UID: p.UID, Deleting: p.DeletionTimestamp != nil,
		Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && p.Annotations[annotationElsewhere] == "" {
		s.Pinned = onlyNode(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			s.Trouble = because(c.Reason, c.Message)
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		s.LastWords = because(p.Status.Reason, p.Status.Message)
	}
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == containerName {
			s.Running = p.Status.Phase == corev1.PodRunning && c.State.Running != nil && !s.Deleting
			s.addDeaths(c)
		}
	}
	return s
}

// addDeaths adds how often the container has ended, and what the last time and what it waits for say.
func (s *PodState) addDeaths(c *corev1.ContainerStatus) {
	s.Deaths = int(c.RestartCount)
	last := c.LastTerminationState.Terminated
	if t := c.State.Terminated; t != nil {
		last = t
	}
	if last != nil && (c.State.Terminated != nil || c.State.Waiting != nil) {
		s.Deaths++ // the kubelet counts starts, and the one that ended is not followed by another one yet
	}
	if last != nil {
		s.LastWords = because(last.Reason, last.Message)
	}
	if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
		s.Trouble = because(w.Reason, cmp.Or(w.Message, s.LastWords))
	}
}

// onlyNode returns the name of the node that a selector names, as the one for the driver's node does; "": it selects in another way.
func onlyNode(selector *corev1.NodeSelector) string {
	if selector == nil || len(selector.NodeSelectorTerms) != 1 || len(selector.NodeSelectorTerms[0].MatchFields) != 1 {
		return ""
	}
	field := selector.NodeSelectorTerms[0].MatchFields[0]
	if field.Key != metav1.ObjectNameField || field.Operator != corev1.NodeSelectorOpIn || len(field.Values) != 1 {
		return ""
	}
	return field.Values[0]
}
