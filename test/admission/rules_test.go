//go:build controlplane

package admission

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	vmsnapshotv1 "github.com/varvebackup/varve/api/snapshot/v1beta1"
	varvev1 "github.com/varvebackup/varve/api/varve/v1alpha1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

// rule is a way to break a rule of a CRD, and the API server's message.
type rule struct {
	name, message string
	object        func(ns string) client.Object
	// update breaks an existing object. Without it, object itself is refused.
	update func(client.Object)
}

func migrationOf(instance string) func(string) client.Object {
	return func(ns string) client.Object {
		m := newMigration(ns)
		m.Spec.VMIName = instance
		return m
	}
}

func machineBackup(ns string) client.Object {
	return &harvesterv1.VirtualMachineBackup{
		ObjectMeta: gen.Meta(ns, "b"),
		Spec:       harvesterv1.VirtualMachineBackupSpec{Source: *gen.Source("vm")},
	}
}

func machineBackupWith(edit func(*harvesterv1.VirtualMachineBackupSpec)) func(string) client.Object {
	return func(ns string) client.Object {
		b := machineBackup(ns)
		edit(&b.(*harvesterv1.VirtualMachineBackup).Spec)
		return b
	}
}

func machineRestoreWith(edit func(*harvesterv1.VirtualMachineRestore)) func(string) client.Object {
	return func(ns string) client.Object {
		r := &harvesterv1.VirtualMachineRestore{
			ObjectMeta: gen.Meta(ns, "r"),
			Spec: harvesterv1.VirtualMachineRestoreSpec{
				Target: *gen.Source("vm"), VirtualMachineBackupName: "b", VirtualMachineBackupNamespace: ns,
				NewVM: true,
			},
		}
		edit(r)
		return r
	}
}

func scheduleWith(edit func(*harvesterv1.ScheduleVMBackupSpec)) func(string) client.Object {
	return func(ns string) client.Object {
		o := gen.Schedule(gen.Meta(ns, "s"), "vm")
		if edit != nil {
			edit(&o.Spec)
		}
		return o
	}
}

func policyWith(edit func(*varvev1.BackupPolicy)) func(string) client.Object {
	return func(ns string) client.Object {
		o := gen.Policy(gen.Meta(ns, "p"), metav1.LabelSelector{})
		edit(o)
		return o
	}
}

func imageWith(edit func(*longhornv1.BackingImage)) func(string) client.Object {
	return func(ns string) client.Object { return gen.Image(gen.Meta(controlplane.SystemNamespace, ns), edit) }
}

func policyAnnotated(name string) func(string) client.Object {
	return policyWith(func(o *varvev1.BackupPolicy) { o.Spec.Template.Annotations[name] = "x" })
}

func policySpecWith(edit func(*varvev1.ScheduleTemplateSpec)) func(string) client.Object {
	return policyWith(func(o *varvev1.BackupPolicy) { edit(&o.Spec.Template.Spec) })
}

func snapshotWith(edit func(*vmsnapshotv1.VirtualMachineSnapshotSpec)) func(string) client.Object {
	return func(ns string) client.Object {
		s := gen.MachineSnapshot(gen.Meta(ns, "s"))
		if edit != nil {
			edit(&s.Spec)
		}
		return s
	}
}

func backupWith(edit func(*backupv1.VirtualMachineBackupSpec)) func(string) client.Object {
	return func(ns string) client.Object { b := newBackup(ns); edit(&b.Spec); return b }
}

func trackerWith(edit func(*backupv1.VirtualMachineBackupTracker)) func(string) client.Object {
	return func(ns string) client.Object { t := newTracker(ns); edit(t); return t }
}

func instanceWith(edit func(*kubevirtv1.VirtualMachineInstanceSpec)) func(string) client.Object {
	return func(ns string) client.Object { i := newInstance(ns); edit(&i.Spec); return i }
}

func sourced(edit func(*corev1.TypedLocalObjectReference)) func(string) client.Object {
	return backupWith(func(s *backupv1.VirtualMachineBackupSpec) {
		s.BackupTracker = ""
		s.Source = gen.Source("vm")
		edit(s.Source)
	})
}

func exportWith(edit func(*exportv1.VirtualMachineExportSpec)) func(string) client.Object {
	return func(ns string) client.Object { e := newExport(ns); edit(&e.Spec); return e }
}

func exportOf(source *corev1.TypedLocalObjectReference) func(string) client.Object {
	return exportWith(func(s *exportv1.VirtualMachineExportSpec) { s.Source = *source })
}

// machineSet returns what makes a machine with a value that Go's type does not have: one that is stored would keep all machines from being read.
func machineSet(value any, path ...string) func(ns string) client.Object {
	return func(ns string) client.Object {
		u, err := toUnstructured(newMachine(ns))
		if err == nil {
			err = unstructured.SetNestedField(u.Object, value, path...)
		}
		if err != nil {
			panic(err)
		}
		return u
	}
}

var rules = []rule{
	{
		"export's source changed", "source is immutable: create another export", func(ns string) client.Object { return newExport(ns) },
		func(o client.Object) { o.(*exportv1.VirtualMachineExport).Spec.Source.Name = "other" },
	},
	{
		"export's token added", "tokenSecretRef is immutable: create another export", func(ns string) client.Object { return newExport(ns) },
		func(o client.Object) { o.(*exportv1.VirtualMachineExport).Spec.TokenSecretRef = ptr.To("mine") },
	},
	{
		"export's token changed", "tokenSecretRef is immutable: create another export",
		exportWith(func(s *exportv1.VirtualMachineExportSpec) { s.TokenSecretRef = ptr.To("mine") }),
		func(o client.Object) { o.(*exportv1.VirtualMachineExport).Spec.TokenSecretRef = ptr.To("other") },
	},
	{"export of a snapshot", "kind must be VirtualMachineBackup, PersistentVolumeClaim or VirtualMachine", exportOf(&corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: "VirtualMachineSnapshot", Name: "s"}), nil},
	{"export of another group's backup", "apiGroup of a VirtualMachineBackup must be backup.kubevirt.io", exportOf(&corev1.TypedLocalObjectReference{APIGroup: ptr.To("harvesterhci.io"), Kind: "VirtualMachineBackup", Name: "b"}), nil},
	{"export of a machine without a group", "apiGroup of a VirtualMachine must be kubevirt.io", exportOf(&corev1.TypedLocalObjectReference{Kind: "VirtualMachine", Name: "vm"}), nil},
	{"export of a claim with a group", "apiGroup of a PersistentVolumeClaim must be empty", exportOf(&corev1.TypedLocalObjectReference{APIGroup: ptr.To("apps"), Kind: "PersistentVolumeClaim", Name: "c"}), nil},
	{"export of nothing", "name must have 1 to 253 characters", exportOf(gen.ClaimSource("")), nil},
	{"export's token without a name", "spec.tokenSecretRef", exportWith(func(s *exportv1.VirtualMachineExportSpec) { s.TokenSecretRef = ptr.To("") }), nil},
	{"export that ends at once", "must be a positive duration, such as 30m", exportWith(func(s *exportv1.VirtualMachineExportSpec) { s.TTLDuration = &metav1.Duration{} }), nil},
	{
		"export's duration in words", "spec.ttlDuration",
		func(ns string) client.Object {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": exportv1.GroupVersion.String(), "kind": "VirtualMachineExport", "metadata": map[string]any{"namespace": ns, "name": "e"},
				"spec": map[string]any{"source": map[string]any{"kind": "PersistentVolumeClaim", "name": "c"}, "ttlDuration": "two hours"},
			}}
		}, nil,
	},

	{"template's label that is a number", "spec.template.metadata.labels.tier", machineSet(int64(1), "spec", "template", "metadata", "labels", "tier"), nil},
	{"template's annotation that is a bool", "spec.template.metadata.annotations.a", machineSet(true, "spec", "template", "metadata", "annotations", "a"), nil},
	{"guest with a fractional exponent", "must be a quantity, such as 2Gi", machineSet("1e1.5", "spec", "template", "spec", "domain", "memory", "guest"), nil},
	{"guest with a long exponent", "must be a quantity, such as 2Gi", machineSet("1e99999", "spec", "template", "spec", "domain", "memory", "guest"), nil},

	{
		"backup changed", "spec is immutable, except for ttl: create another backup", func(ns string) client.Object { return newBackup(ns) },
		func(o client.Object) { o.(*backupv1.VirtualMachineBackup).Spec.SkipQuiesce = true },
	},
	{
		"neither source nor tracker", "set exactly one of source (a VirtualMachine is backed up fully and keeps no checkpoint) and backupTracker",
		backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.BackupTracker = "" }), nil,
	},
	{
		"both source and tracker", "set exactly one of source",
		backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.Source = gen.Source("vm") }), nil,
	},
	{"source group", "apiGroup must be kubevirt.io", sourced(func(r *corev1.TypedLocalObjectReference) { r.APIGroup = ptr.To("apps") }), nil},
	{"source without a group", "apiGroup must be kubevirt.io", sourced(func(r *corev1.TypedLocalObjectReference) { r.APIGroup = nil }), nil},
	{"source kind", "kind must be VirtualMachine", sourced(func(r *corev1.TypedLocalObjectReference) { r.Kind = "VirtualMachineInstance" }), nil},
	{"source name", "name is required", sourced(func(r *corev1.TypedLocalObjectReference) { r.Name = "" }), nil},
	{"no claim", "spec.pvcName", backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.PVCName = "" }), nil},
	{"mode", `Unsupported value: "PULL"`, backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.Mode = "PULL" }), nil},
	{
		"pull without a token", "tokenSecretRef is required in pull mode: name a Secret whose key token has what clients must send",
		backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.Mode = backupv1.PullMode }), nil,
	},
	{
		"a puller of a push backup", "pulledBy is for pull mode: remove it, or set mode to pull",
		backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.PulledBy = backupv1.PulledByDataUploads }), nil,
	},
	{"two times", "ttl and ttlDuration mean the same: set one of them", backupWith(func(s *backupv1.VirtualMachineBackupSpec) {
		s.TTL, s.TTLDuration = &metav1.Duration{Duration: time.Hour}, &metav1.Duration{Duration: time.Minute}
	}), nil},
	{"no time", "must be a positive duration, such as 30m", backupWith(func(s *backupv1.VirtualMachineBackupSpec) { s.TTL = &metav1.Duration{} }), nil},

	{
		"backup's name", "metadata.name must be at most 230 characters: the directory on the target is named after it",
		func(ns string) client.Object {
			b := backupWith(func(*backupv1.VirtualMachineBackupSpec) {})(ns)
			b.SetName(strings.Repeat("b", 231))
			return b
		}, nil,
	},

	{
		"tracker changed", "spec is immutable: create another tracker", func(ns string) client.Object { return newTracker(ns) },
		func(o client.Object) { o.(*backupv1.VirtualMachineBackupTracker).Spec.Source.Name = "other" },
	},
	{"tracker's group", "apiGroup must be kubevirt.io", trackerWith(func(t *backupv1.VirtualMachineBackupTracker) { t.Spec.Source.APIGroup = nil }), nil},
	{"tracker's kind", "kind must be VirtualMachine", trackerWith(func(t *backupv1.VirtualMachineBackupTracker) { t.Spec.Source.Kind = "Pod" }), nil},
	{"tracker's machine", "name is required", trackerWith(func(t *backupv1.VirtualMachineBackupTracker) { t.Spec.Source.Name = "" }), nil},
	{
		"tracker's name", "metadata.name must be at most 200 characters: checkpoints are named after it",
		trackerWith(func(t *backupv1.VirtualMachineBackupTracker) { t.Name = strings.Repeat("t", 201) }), nil,
	},

	{
		"upload's location changed", "spec is immutable, except for cancel: create another DataUpload", func(ns string) client.Object { return newSpecifiedUpload(ns) },
		func(o client.Object) { o.(*velerov2.DataUpload).Spec.BackupStorageLocation = "other" },
	},
	{
		"upload's cancel taken back", "cancel cannot be taken back",
		func(ns string) client.Object { du := newSpecifiedUpload(ns); du.Spec.Cancel = true; return du },
		func(o client.Object) { o.(*velerov2.DataUpload).Spec.Cancel = false },
	},
	{
		"download's snapshot changed", "spec is immutable, except for cancel: create another DataDownload", func(ns string) client.Object { return newDownload(ns) },
		func(o client.Object) { o.(*velerov2.DataDownload).Spec.SnapshotID = "other" },
	},
	{
		"download's cancel taken back", "cancel cannot be taken back",
		func(ns string) client.Object { dd := newDownload(ns); dd.Spec.Cancel = true; return dd },
		func(o client.Object) { o.(*velerov2.DataDownload).Spec.Cancel = false },
	},

	{
		"machine's name", "metadata.name must be at most 63 characters: it is the value of a label",
		func(ns string) client.Object { m := newMachine(ns); m.Name = strings.Repeat("m", 64); return m }, nil,
	},
	{
		"instance's name", "metadata.name must be at most 63 characters: it is the value of a label",
		func(ns string) client.Object { i := newInstance(ns); i.Name = strings.Repeat("m", 64); return i }, nil,
	},
	{
		"run strategy", `Unsupported value: "Sometimes"`,
		func(ns string) client.Object {
			m := newMachine(ns)
			m.Spec.RunStrategy = ptr.To(kubevirtv1.RunStrategy("Sometimes"))
			return m
		}, nil,
	},
	{
		"running and run strategy", "set at most one of running and runStrategy",
		func(ns string) client.Object {
			m := newMachine(ns)
			m.Spec.Running, m.Spec.RunStrategy = ptr.To(true), ptr.To(kubevirtv1.RunStrategyAlways)
			return m
		}, nil,
	},
	{
		"utility volumes in a template", "utilityVolumes are attached to a running VirtualMachineInstance by Varve's controllers; remove the field from the template",
		func(ns string) client.Object {
			m := newMachine(ns)
			m.Spec.Template.Spec.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
			return m
		}, nil,
	},
	{
		"disk without a volume", "every disk needs a volume of the same name in spec.volumes",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Volumes = nil }), nil,
	},
	{
		"volume without a disk", "every volume needs a disk of the same name in spec.domain.devices.disks",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks = nil }), nil,
	},
	{
		"interface without a network", "every interface needs a network of the same name in spec.networks",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Networks = nil }), nil,
	},
	{
		"utility volume named like a volume", "a utility volume must not have the name of a volume",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("root", "claim")}
		}), nil,
	},
	{
		"utility volumes of one name", "Duplicate value",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "one"), utility("u", "two")}
		}), nil,
	},
	{
		"utility volume without a claim", "claimName is required",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "")}
		}), nil,
	},
	{
		"utility volume's type", `Unsupported value: "Disk"`,
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			u := utility("u", "claim")
			u.Type = ptr.To(kubevirtv1.UtilityVolumeType("Disk"))
			s.UtilityVolumes = []kubevirtv1.UtilityVolume{u}
		}), nil,
	},
	{
		"utility volume changed", "a utility volume is immutable: remove it and add another",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.UtilityVolumes = []kubevirtv1.UtilityVolume{utility("u", "claim")}
		}),
		func(o client.Object) {
			o.(*kubevirtv1.VirtualMachineInstance).Spec.UtilityVolumes[0].ClaimName = "other"
		},
	},
	{
		"kernel arguments without a kernel", "kernelArgs needs a container with a kernel",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Firmware.KernelBoot.Container = nil }), nil,
	},
	{
		"kernel container without a path", "set kernelPath, initrdPath or both",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Firmware.KernelBoot.Container.KernelPath = "" }), nil,
	},
	{
		"no device", "only disk is supported as a device",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks[0].Disk = nil }), nil,
	},
	{
		"bus", `Unsupported value: "ide"`,
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Disks[0].Disk.Bus = "ide" }), nil,
	},
	{
		"no binding", "only masquerade is supported as a binding",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Domain.Devices.Interfaces[0].Masquerade = nil }), nil,
	},
	{
		"no pod network", "only the pod network is supported",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Networks[0].Pod = nil }), nil,
	},
	{
		"no source", "only persistentVolumeClaim is supported as a source",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) { s.Volumes[0].PersistentVolumeClaim = nil }), nil,
	},
	{
		"long name of a machine backup",
		"metadata.name must be at most 200 characters: other objects are named after it",
		func(ns string) client.Object { b := machineBackup(ns); b.SetName(strings.Repeat("b", 201)); return b }, nil,
	},
	{
		"another source of a machine backup", "spec.source is immutable: create another backup", machineBackup,
		func(o client.Object) { o.(*harvesterv1.VirtualMachineBackup).Spec.Source.Name = "other" },
	},
	{
		"another type of a machine backup", "spec.type is immutable", machineBackup,
		func(o client.Object) { o.(*harvesterv1.VirtualMachineBackup).Spec.Type = harvesterv1.Snapshot },
	},
	{
		"type of a machine backup", `Unsupported value: "archive": supported values: "backup", "snapshot"`,
		machineBackupWith(func(s *harvesterv1.VirtualMachineBackupSpec) { s.Type = "archive" }), nil,
	},
	{
		"negative freeze of a snapshot", "must not be negative",
		machineBackupWith(func(s *harvesterv1.VirtualMachineBackupSpec) {
			s.Type, s.FSFreezeDeadline = harvesterv1.Snapshot, &metav1.Duration{Duration: -time.Second}
		}), nil,
	},
	{
		"freeze of a backup", "fsFreezeDeadline is for type snapshot: a backup of a running machine holds the freeze for " +
			"milliseconds, and for 30 s at the most",
		machineBackupWith(func(s *harvesterv1.VirtualMachineBackupSpec) {
			s.FSFreezeDeadline = &metav1.Duration{Duration: time.Second}
		}), nil,
	},
	{
		"another restore", "VirtualMachineRestore spec is immutable",
		machineRestoreWith(func(*harvesterv1.VirtualMachineRestore) {}),
		func(o client.Object) { o.(*harvesterv1.VirtualMachineRestore).Spec.HaltAfterRestore = true },
	},
	{
		"name of a restored machine", "Target VM name is invalid",
		machineRestoreWith(func(r *harvesterv1.VirtualMachineRestore) { r.Spec.Target.Name = "We b" }), nil,
	},
	{
		"deleting the claims of a new machine", "deletionPolicy delete is for a machine that is replaced",
		machineRestoreWith(func(r *harvesterv1.VirtualMachineRestore) {
			r.Spec.DeletionPolicy = harvesterv1.DeletionPolicyDelete
		}), nil,
	},
	{
		"policy for the claims of a replaced machine", `Unsupported value: "keep": supported values: "delete", "retain"`,
		machineRestoreWith(func(r *harvesterv1.VirtualMachineRestore) {
			r.Spec.NewVM, r.Spec.DeletionPolicy = false,
				"keep"
		}), nil,
	},
	{
		"schedule without times", "spec.cron in body should be at least 1 chars long",
		scheduleWith(func(s *harvesterv1.ScheduleVMBackupSpec) { s.Cron = "" }), nil,
	},
	{
		"schedule that keeps one", "spec.retain in body should be greater than or equal to 2",
		scheduleWith(func(s *harvesterv1.ScheduleVMBackupSpec) { s.Retain = 1 }), nil,
	},
	{
		"schedule that keeps too many", "spec.retain in body should be less than or equal to 250",
		scheduleWith(func(s *harvesterv1.ScheduleVMBackupSpec) { s.Retain = 251 }), nil,
	},
	{
		"schedule that may not fail", "spec.maxFailure in body should be greater than or equal to 2",
		scheduleWith(func(s *harvesterv1.ScheduleVMBackupSpec) { s.MaxFailure = 1 }), nil,
	},
	{
		"schedule that may fail as often as it keeps", "maxFailure must be less than retain",
		scheduleWith(func(s *harvesterv1.ScheduleVMBackupSpec) { s.Retain, s.MaxFailure = 3, 3 }), nil,
	},
	{
		"another source of a schedule", "is immutable: create another schedule", scheduleWith(nil),
		func(o client.Object) { o.(*harvesterv1.ScheduleVMBackup).Spec.VMBackupSpec.Source.Name = "other" },
	},
	{
		"another type of a schedule", "is immutable: create another schedule", scheduleWith(nil),
		func(o client.Object) { o.(*harvesterv1.ScheduleVMBackup).Spec.VMBackupSpec.Type = harvesterv1.Snapshot },
	},
	{
		"long name of a policy", "metadata.name must be at most 63 characters: the schedules of machines are named after it",
		policyWith(func(o *varvev1.BackupPolicy) { o.Name = strings.Repeat("p", 64) }), nil,
	},
	{
		"policy without times", "spec.template.spec.cron in body should be at least 1 chars long",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.Cron = "" }), nil,
	},
	{
		"policy that keeps one", "spec.template.spec.retain in body should be greater than or equal to 2",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.Retain = 1 }), nil,
	},
	{
		"policy that keeps too many", "spec.template.spec.retain in body should be less than or equal to 250",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.Retain = 251 }), nil,
	},
	{
		"policy that may not fail", "spec.template.spec.maxFailure in body should be greater than or equal to 2",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.MaxFailure = 1 }), nil,
	},
	{
		"policy that may fail as often as it keeps", "maxFailure must be less than retain",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.Retain, s.MaxFailure = 3, 3 }), nil,
	},
	{
		"type of a policy", `Unsupported value: "archive": supported values: "backup", "snapshot"`,
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) { s.Type = "archive" }), nil,
	},
	{
		"freeze of a policy's backups", "fsFreezeDeadline is for type snapshot",
		policySpecWith(func(s *varvev1.ScheduleTemplateSpec) {
			s.FSFreezeDeadline = &metav1.Duration{Duration: time.Second}
		}), nil,
	},
	{
		"annotation of a policy that means nothing for a schedule", "annotations must be those of a ScheduleVMBackup",
		policyAnnotated("example.com/owner"), nil,
	},
	{
		"annotation of a policy that is the controller's", "varvebackup.io/policy-... are the controller's",
		policyAnnotated(varvev1.AnnotationPolicySuspend), nil,
	},
	{
		"annotation of a policy that is for one schedule", "varvebackup.io/run-at is for one schedule",
		policyAnnotated(harvesterv1.AnnotationRunAt), nil,
	},
	{
		"another source of a snapshot", "source is immutable: create another snapshot", snapshotWith(nil),
		func(o client.Object) { o.(*vmsnapshotv1.VirtualMachineSnapshot).Spec.Source.Name = "other" },
	},
	{
		"group of a snapshot's source", "apiGroup must be kubevirt.io",
		snapshotWith(func(s *vmsnapshotv1.VirtualMachineSnapshotSpec) { s.Source.APIGroup = ptr.To("apps") }), nil,
	},
	{
		"kind of a snapshot's source", "kind must be VirtualMachine",
		snapshotWith(func(s *vmsnapshotv1.VirtualMachineSnapshotSpec) { s.Source.Kind = "Pod" }), nil,
	},
	{
		"name of a snapshot's source", "name is required",
		snapshotWith(func(s *vmsnapshotv1.VirtualMachineSnapshotSpec) { s.Source.Name = "" }), nil,
	},
	{
		"deadline of a snapshot", "must be a positive duration, such as 5m",
		snapshotWith(func(s *vmsnapshotv1.VirtualMachineSnapshotSpec) { s.FailureDeadline = &metav1.Duration{} }), nil,
	},
	{
		"deletion policy of a snapshot", `Unsupported value: "Keep"`,
		snapshotWith(func(s *vmsnapshotv1.VirtualMachineSnapshotSpec) {
			s.DeletionPolicy = ptr.To(vmsnapshotv1.DeletionPolicy("Keep"))
		}), nil,
	},
	{
		"engine of an image", "must be v2: Varve has no v1 engine",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.DataEngine = "v1" }), nil,
	},
	{
		"engine of a copy", "must be v2: Varve has no v1 engine",
		imageWith(func(o *longhornv1.BackingImage) {
			o.Spec.DiskFileSpecMap = map[string]*longhornv1.BackingImageDiskFileSpec{"disk-1": {DataEngine: "v1"}}
		}), nil,
	},
	{
		"engine of a volume", "must be v2: Varve has no v1 engine",
		func(ns string) client.Object {
			return &longhornv1.Volume{
				ObjectMeta: gen.Meta(controlplane.SystemNamespace, ns),
				Spec:       longhornv1.VolumeSpec{Size: 1 << 30, NumberOfReplicas: 1, DataEngine: "v1"},
			}
		}, nil,
	},
	{
		"engine of a replica", "must be v2: Varve has no v1 engine",
		func(ns string) client.Object {
			return &longhornv1.Replica{
				ObjectMeta: gen.Meta(controlplane.SystemNamespace, ns),
				Spec:       longhornv1.ReplicaSpec{VolumeName: "v", VolumeSize: 1 << 30, DataEngine: "v1"},
			}
		}, nil,
	},
	{
		"engine of a store", "must be v2: Varve has no v1 engine",
		func(ns string) client.Object {
			return &longhornv1.InstanceManager{
				ObjectMeta: gen.Meta(controlplane.SystemNamespace, ns),
				Spec:       longhornv1.InstanceManagerSpec{DataEngine: "v1"},
			}
		}, nil,
	},
	{
		"long name of an image", "metadata.name must be at most 63 characters: claims",
		imageWith(func(o *longhornv1.BackingImage) { o.Name = strings.Repeat("x", 64) }), nil,
	},
	{
		"image without an address", "sourceParameters.url must be an address that begins with http:// or https://",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.SourceParameters = nil }), nil,
	},
	{
		"address of an image", "sourceParameters.url must be an address that begins with http:// or https://",
		imageWith(func(o *longhornv1.BackingImage) {
			o.Spec.SourceParameters[longhornv1.ParameterURL] = "file:///etc/passwd"
		}), nil,
	},
	{
		"image of no volume", "sourceParameters.volume-name must name the volume",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.SourceType = longhornv1.SourceExport }), nil,
	},
	{
		"image of no image", "sourceParameters.backing-image must name the image",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.SourceType = longhornv1.SourceClone }), nil,
	},
	{
		"image of no location", "sourceParameters.backup-storage-location must name the BackupStorageLocation",
		imageWith(func(o *longhornv1.BackingImage) {
			o.Spec.SourceType = longhornv1.SourceRestore
			o.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
				longhornv1.ParameterSnapshotID: "varve1.disk.0123456789abcdef0123456789abcdef.app",
			}
		}), nil,
	},
	{
		"another image of a backup", "spec cannot change: make another BackupBackingImage",
		func(ns string) client.Object {
			return &longhornv1.BackupBackingImage{
				ObjectMeta: gen.Meta(controlplane.SystemNamespace, ns),
				Spec:       longhornv1.BackupBackingImageSpec{BackingImage: "golden"},
			}
		},
		func(o client.Object) { o.(*longhornv1.BackupBackingImage).Spec.BackingImage = "debian" },
	},
	{
		"image of files", "sourceParameters.snapshot-id must be the snapshot ID of a disk",
		imageWith(func(o *longhornv1.BackingImage) {
			o.Spec.SourceType = longhornv1.SourceRestore
			o.Spec.SourceParameters = map[string]longhornv1.ParameterValue{
				longhornv1.ParameterLocation:   "default",
				longhornv1.ParameterSnapshotID: "varve1.files.0123456789abcdef0123456789abcdef.app",
			}
		}), nil,
	},
	{
		"another type of an image's source", "sourceType cannot change: make another image",
		imageWith(func(*longhornv1.BackingImage) {}), func(o client.Object) {
			o.(*longhornv1.BackingImage).Spec.SourceType = longhornv1.SourceUpload
		},
	},
	{
		"another source of an image", "sourceParameters cannot change: make another image",
		imageWith(func(*longhornv1.BackingImage) {}), func(o client.Object) {
			o.(*longhornv1.BackingImage).Spec.SourceParameters[longhornv1.ParameterURL] = "https://example.com/other"
		},
	},
	{
		"checksum of an image", "spec.checksum",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.Checksum = "abc" }), nil,
	},
	{
		"image on no disk", "spec.minNumberOfCopies in body should be greater than or equal to 1",
		imageWith(func(o *longhornv1.BackingImage) { o.Spec.MinNumberOfCopies = -1 }), nil,
	},
	{"migration of nothing", "vmiName is required", migrationOf(""), nil},
	{"migration of another instance", "spec is immutable: create another migration", migrationOf("vm"), func(o client.Object) {
		o.(*kubevirtv1.VirtualMachineInstanceMigration).Spec.VMIName = "other"
	}},
	{"migration to another node", "spec is immutable: create another migration", migrationOf("vm"), func(o client.Object) {
		o.(*kubevirtv1.VirtualMachineInstanceMigration).Spec.AddedNodeSelector = map[string]string{"zone": "b"}
	}},
	{
		"machine type", "spec.domain.machine.type",
		instanceWith(func(s *kubevirtv1.VirtualMachineInstanceSpec) {
			s.Domain.Machine = &kubevirtv1.Machine{Type: "microvm"}
		}), nil,
	},
}

func TestRules(t *testing.T) {
	t.Parallel()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Client(t, controlplane.Controller)
			o := r.object(cluster.Namespace(t))
			if r.update == nil {
				refused(t, c.Create(t.Context(), o), r.message)
				return
			}
			admitted(t, c.Create(t.Context(), o))
			r.update(o)
			refused(t, c.Update(t.Context(), o), r.message)
		})
	}
}

// A rule that is added to a type needs a case above.
func TestRules_eachHasACase(t *testing.T) {
	t.Parallel()
	for crd, schema := range schemas(t) {
		walk(schema, "", func(path string, node map[string]any) {
			list, _ := node["x-kubernetes-validations"].([]any)
			for _, v := range list {
				message, _ := v.(map[string]any)["message"].(string)
				if message == "" {
					t.Errorf("%s%s: a rule without a message", crd, path)
				}
				if !covered(message) {
					t.Errorf("%s%s: no case for %q", crd, path, message)
				}
			}
		})
	}
}

func covered(message string) bool {
	for _, r := range rules {
		if r.message != "" && strings.Contains(message, r.message) {
			return true
		}
	}
	return false
}

func TestSchema_namesUnknownFields(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	c := cluster.Client(t, controlplane.Plain)
	o := unstructuredOf(t, newInstance(ns))
	o.Object["spec"].(map[string]any)["livenessProbe"] = map[string]any{}
	refused(t, c.Create(t.Context(), o), `unknown field "spec.livenessProbe"`)
}

// Upstream's clients set forceFullBackup whatever the source is. A backup of a source is always full.
func TestForceFullBackup_isAcceptedWithASource(t *testing.T) {
	t.Parallel()
	b := newBackup(cluster.Namespace(t))
	b.Spec.BackupTracker, b.Spec.Source, b.Spec.ForceFullBackup = "", gen.Source("vm"), true
	admitted(t, cluster.Client(t, controlplane.Plain).Create(t.Context(), b))
}

// client-go's default client is not strict: fields unknown to the schema were dropped, and the machine stayed halted.
func TestRunning_isKeptForEveryClient(t *testing.T) {
	t.Parallel()
	m := newMachine(cluster.Namespace(t))
	m.Spec.Running, m.Spec.RunStrategy = ptr.To(true), nil
	c := client.WithFieldValidation(cluster.Client(t, controlplane.Plain), "Ignore")
	admitted(t, c.Create(t.Context(), m))
	admitted(t, c.Get(t.Context(), client.ObjectKeyFromObject(m), m))
	if m.Spec.Running == nil || !*m.Spec.Running || m.Spec.RunStrategy != nil {
		t.Errorf("stored as running %v, runStrategy %v", m.Spec.Running, m.Spec.RunStrategy)
	}
}
