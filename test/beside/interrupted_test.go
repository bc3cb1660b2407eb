//go:build beside

package beside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/wait"
)

// victim is a pod, by the beginning of its name.
type victim struct{ namespace, prefix string }

// interruptMover begins a backup, and kills the mover of one of its disks.
func (s *scene) interruptMover() {
	s.interruptBackup("mover", func(u *velerov2.DataUpload) victim {
		return victim{layout.Namespace, datamove.ChildName(datamove.Upload, u.UID)}
	})
}

// interruptExport begins a backup, and kills KubeVirt's export pod.
func (s *scene) interruptExport() {
	s.interruptBackup("export", func(*velerov2.DataUpload) victim { return victim{s.Namespace, "virt-export-"} })
}

// interruptHandler begins a backup, and kills KubeVirt's virt-handler. What the next backup stored is restored.
func (s *scene) interruptHandler() {
	next := s.interruptBackup("handler", func(*velerov2.DataUpload) victim { return victim{kubeVirt, "virt-handler-"} })
	sums := s.hashDisks()
	s.loseAndRestore(next, sums)
}

// interruptBackup begins a backup of what the guest has written, and kills a pod while a disk is read. The backup ends,
// and the next one, which it returns, is ready. The guest writes nothing after that.
func (s *scene) interruptBackup(name string, find func(*velerov2.DataUpload) victim) *harvesterv1.VirtualMachineBackup {
	s.t.Helper()
	s.runInGuest(`dd if=/dev/urandom of=$data bs=1M seek=300 count=48 conv=fsync`)
	b := s.createBackup(name)
	s.mustSucceed(s.whileReading(b, "a "+name, func(ctx context.Context, u *velerov2.DataUpload) (bool, error) {
		return s.killPod(ctx, find(u))
	}))
	s.waitEnded(b)
	if b.HasFailed() {
		s.t.Logf("backup %s, of which a pod was killed, failed: %s", name, *b.Status.Error.Message)
	} else {
		s.t.Logf("backup %s, of which a pod was killed, is ready", name)
	}
	s.runInGuest(`dd if=/dev/urandom of=$root bs=64k seek=99 count=3 conv=fsync`)
	next := s.backUp(name + "-again")
	if b.IsReady() {
		s.checkIncremental(next)
	}
	return next
}

// cancelBackup cancels a backup while a disk is read. It fails and says why. KubeVirt's tracker has moved on, so the
// next backup asks for everything.
func (s *scene) cancelBackup() {
	s.t.Helper()
	s.runInGuest(`dd if=/dev/urandom of=$data bs=1M seek=350 count=48 conv=fsync`)
	b := s.createBackup("canceled")
	s.mustSucceed(s.whileReading(b, "a DataUpload", func(ctx context.Context, u *velerov2.DataUpload) (bool, error) {
		return true, s.Patch(ctx, u, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cancel":true}}`)))
	}))
	s.waitEnded(b)
	if !b.HasFailed() || !strings.Contains(*b.Status.Error.Message, "cancel") {
		s.t.Errorf("a backup that was canceled is ready: %v, error %+v", b.IsReady(), b.Status.Error)
	}
	next := s.backUp("canceled-again")
	uploads, err := s.listUploads(s.t.Context(), next)
	s.mustSucceed(err)
	for i := range uploads {
		report, err := datamove.DecodeReport(uploads[i].Annotations[datamove.AnnotationReport])
		s.mustSucceed(err)
		if report.ReadBytes != report.TotalBytes || report.TotalBytes == 0 {
			s.t.Errorf("DataUpload %s read %d of %d bytes", uploads[i].Name, report.ReadBytes, report.TotalBytes)
		}
	}
}

// whileReading calls act with a DataUpload of the backup that is InProgress, until act has found what it acts on.
func (s *scene) whileReading(
	b *harvesterv1.VirtualMachineBackup, what string, act func(context.Context, *velerov2.DataUpload) (bool, error),
) error {
	return wait.For(s.t.Context(), backupTimeout, what+" to disturb", func(ctx context.Context) (bool, string, error) {
		uploads, err := s.listUploads(ctx, b)
		if err != nil {
			return false, "", err
		}
		var reading *velerov2.DataUpload
		ended := 0
		for i := range uploads {
			switch u := &uploads[i]; {
			case u.Status.Phase.Ended():
				ended++
			case u.Status.Phase == velerov2.PhaseInProgress:
				reading = u
			}
		}
		if ended > 0 && ended == len(uploads) {
			return false, "", errors.New("all uploads ended before anything disturbed one")
		}
		if reading == nil {
			return false, fmt.Sprintf("%d uploads, and none is read", len(uploads)), nil
		}
		found, err := act(ctx, reading)
		return found, "a disk is read", err
	})
}

// killPod deletes a running pod, and gives it no time to end. It reports whether there was one.
func (s *scene) killPod(ctx context.Context, v victim) (bool, error) {
	var pods corev1.PodList
	if err := s.List(ctx, &pods, client.InNamespace(v.namespace)); err != nil {
		return false, err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if strings.HasPrefix(p.Name, v.prefix) && p.Status.Phase == corev1.PodRunning {
			return true, s.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID})
		}
	}
	return false, nil
}

// restartMachine restarts the machine. Varve does not believe what KubeVirt says of an earlier run, so the next backup
// reads the disks as a whole. The one after that is incremental again.
func (s *scene) restartMachine() {
	s.t.Helper()
	ctx, old := s.t.Context(), s.getInstance().UID
	s.runVarve("vm", "restart", machine)
	s.mustSucceed(wait.For(ctx, 2*time.Minute, "another instance", func(ctx context.Context) (bool, string, error) {
		vmi, err := s.findInstance(ctx)
		return err == nil && vmi != "" && vmi != old, string(vmi), err
	}))
	s.waitTracked()
	if out := s.runVarve("vm", "describe", machine); !strings.Contains(out, "KubeVirt (the first backup after a restart") {
		s.t.Errorf("varve vm describe does not say what runs the machine:\n%s", out)
	}
	s.backUpRestarted("restarted")
}

// runVarve runs a command of Varve's in the machine's namespace, and returns what it printed.
func (s *scene) runVarve(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(cluster.root, "build/bin/varve"), append(args, "--namespace="+s.Namespace)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("varve %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// backUpRestarted backs the machine up as a whole, because its guest has been restarted, and then by what has changed.
func (s *scene) backUpRestarted(name string) {
	s.t.Helper()
	const change = `dd if=/dev/urandom of=$root bs=64k seek=120 count=3 conv=fsync
		dd if=/dev/urandom of=$data bs=64k seek=120 count=3 conv=fsync`
	s.runInGuest(change)
	for _, v := range s.backUp(name).Status.VolumeBackups {
		if v.FullReason != "MachineRestarted" {
			s.t.Errorf("disk %s after a restart: full because of %q", v.VolumeName, v.FullReason)
		}
	}
	s.runInGuest(change)
	s.checkIncremental(s.backUp(name + "-again"))
}

// findInstance returns the UID of the machine's instance, or "".
func (s *scene) findInstance(ctx context.Context) (types.UID, error) {
	vmi := &kubevirtv1.VirtualMachineInstance{}
	err := client.IgnoreNotFound(s.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: machine}, vmi))
	return vmi.UID, err
}

// runSchedule has the machine backed up every minute, and once more when a user asks for it. It returns the newest
// backup.
func (s *scene) runSchedule() (newest *harvesterv1.VirtualMachineBackup) {
	s.t.Helper()
	ctx := s.t.Context()
	w := gen.Schedule(gen.Meta(s.Namespace, "often"), machine, func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Cron, o.Spec.Retain, o.Spec.MaxFailure = "* * * * *", 3, 2
		o.Annotations = map[string]string{
			harvesterv1.AnnotationSkipCronCheck: "enable", harvesterv1.AnnotationLocation: s.location.Name,
			harvesterv1.AnnotationRunAt: time.Now().UTC().Format(time.RFC3339),
		}
	})
	s.mustSucceed(s.Create(ctx, w))
	runs := "two runs of the schedule"
	s.mustSucceed(wait.For(ctx, 4*time.Minute, runs, func(ctx context.Context) (bool, string, error) {
		if err := s.Get(ctx, client.ObjectKeyFromObject(w), w); err != nil {
			return false, "", err
		}
		good, onTime := 0, false
		for _, r := range w.Status.Runs {
			switch r.Result {
			case harvesterv1.RunSucceeded:
				good++
				onTime = onTime || r.Reason != harvesterv1.RunRequested
			case harvesterv1.RunFailed, harvesterv1.RunDeleted, harvesterv1.RunRetrying:
				return false, "", errors.New("a run failed: " + r.Message)
			}
		}
		return good >= 2 && onTime, fmt.Sprintf("runs %+v", w.Status.Runs), nil
	}))
	s.mustSucceed(s.Patch(ctx, w, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"suspend":true}}`))))
	const what = "the schedule to be suspended, and no backup to run"
	s.mustSucceed(wait.For(ctx, 2*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		var list harvesterv1.VirtualMachineBackupList
		if err := s.List(ctx, &list, client.InNamespace(s.Namespace),
			client.MatchingLabels{harvesterv1.LabelSchedule: string(w.UID)}); err != nil {
			return false, "", err
		}
		if err := s.Get(ctx, client.ObjectKeyFromObject(w), w); err != nil {
			return false, "", err
		}
		newest = nil
		for i := range list.Items {
			b := &list.Items[i]
			if !b.IsReady() {
				return false, fmt.Sprintf("backup %s %+v", b.Name, b.Status.Conditions), nil
			}
			if newest == nil || newest.CreationTimestamp.Before(&b.CreationTimestamp) {
				newest = b
			}
		}
		return w.Status.Suspended && len(list.Items) >= 2, fmt.Sprintf("%d backups", len(list.Items)), nil
	}))
	s.waitNothingLeft()
	return newest
}
