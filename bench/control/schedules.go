package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/bench/process"
	"github.com/varvebackup/varve/bench/report"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
	"github.com/varvebackup/varve/test/wait"
)

const (
	// namespaces are how many the schedules are spread over.
	namespaces = 10
	// ticking is the namespace of the schedule that is due every minute.
	ticking = "ticking"
)

// measureSchedules runs a controller with schedules that are not due, and one that is due every minute.
func measureSchedules(ctx context.Context, o *options) (rows []report.Row, err error) {
	began := time.Now()
	cluster, err := controlplane.Start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := cluster.InstallSnapshotKinds(ctx); err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(cluster.ConfigFor(controlplane.Admin), client.Options{Scheme: cluster.Scheme})
	if err != nil {
		return nil, err
	}
	if err := fillCluster(ctx, o, cluster, c); err != nil {
		return nil, err
	}
	pid, stop, err := startController(ctx, cluster, o.build)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := waitSettled(ctx, o, c); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d schedules with %d backups each were looked at %s after the start\n",
		o.schedules, o.backups, time.Since(began).Round(time.Second))
	return watchIdle(ctx, o, c, pid)
}

// fillCluster makes the schedules with their backups, and a stopped machine with a schedule that is due every minute.
func fillCluster(ctx context.Context, o *options, cluster *controlplane.Cluster, c client.Client) error {
	for i := range namespaces + 1 {
		name := fmt.Sprintf("shop-%d", i)
		if i == namespaces {
			name = ticking
		}
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	now := metav1.Now()
	far := now.UTC().Add(6 * time.Hour).Hour() // nothing is due while it is measured
	var all []client.Object
	for i := range o.schedules {
		meta := gen.Meta(fmt.Sprintf("shop-%d", i%namespaces), fmt.Sprintf("nightly-%d", i))
		s := gen.Schedule(meta, fmt.Sprintf("vm-%d", i), func(s *harvesterv1.ScheduleVMBackup) {
			s.Spec.Cron = fmt.Sprintf("%d %d * * *", i%60, far)
		})
		s.UID, s.CreationTimestamp, s.Generation = types.UID(fmt.Sprintf("schedule-%d", i)), now, 1
		all = append(all, s)
		for n := range o.backups {
			all = append(all, endedBackup(s, now.Add(-time.Duration(24*(n+1))*time.Hour)))
		}
	}
	all = append(all, newRepositories(o.repositories, now.Time)...)
	if err := cluster.SeedObjects(ctx, all); err != nil {
		return err
	}
	vm := gen.VirtualMachine(gen.Meta(ticking, "vm"), gen.Guest(), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
	tick := gen.Schedule(gen.Meta(ticking, "minutes"), "vm", func(s *harvesterv1.ScheduleVMBackup) {
		s.Spec.Cron, s.Spec.Retain, s.Spec.MaxFailure = "* * * * *", 250, 249
		s.Annotations = map[string]string{harvesterv1.AnnotationSkipCronCheck: "enable"}
	})
	return errors.Join(c.Create(ctx, vm), c.Create(ctx, tick))
}

// endedBackup returns a backup that a schedule has made, with what its controller has written.
func endedBackup(s *harvesterv1.ScheduleVMBackup, due time.Time) *harvesterv1.VirtualMachineBackup {
	at := due.UTC().Format(harvesterv1.ScheduledTimeLayout)
	b := &harvesterv1.VirtualMachineBackup{
		ObjectMeta: gen.Meta(s.Namespace, "svmbackup-"+string(s.UID)+"-"+at), Spec: s.Spec.VMBackupSpec,
		Status: harvesterv1.VirtualMachineBackupStatus{
			ReadyToUse: ptr.To(true), CreationTime: ptr.To(metav1.NewTime(due)), Progress: 100, Group: s.Name + at,
			VolumeBackups: []harvesterv1.VolumeBackup{
				{Name: ptr.To("root"), VolumeName: "root", ReadyToUse: ptr.To(true)},
			},
		},
	}
	b.CreationTimestamp, b.Generation = metav1.NewTime(due), 1
	b.Labels = map[string]string{
		harvesterv1.LabelSchedule: string(s.UID), harvesterv1.LabelScheduledTime: at, layout.LabelEnded: "true",
	}
	b.Annotations = map[string]string{harvesterv1.AnnotationSchedule: s.Namespace + "/" + s.Name}
	return b
}

// startController starts the controller as a process of its own, which is what is measured.
func startController(
	ctx context.Context, cluster *controlplane.Cluster, build string,
) (pid int, stop func(), err error) {
	directory, err := os.MkdirTemp("", "varve-bench-")
	if err != nil {
		return 0, nil, err
	}
	config := cluster.ConfigFor(controlplane.Controller)
	kubeconfig := filepath.Join(directory, "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: "https://" + strings.TrimPrefix(config.Host, "https://"), CertificateAuthorityData: config.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
			Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups,
		}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, kubeconfig); err != nil {
		return 0, nil, err
	}
	log, err := os.Create(filepath.Join(build, "bench-controller.log"))
	if err != nil {
		return 0, nil, err
	}
	command := exec.CommandContext(ctx, filepath.Join(build, "bin", "varve"), "controller", "--kubeconfig", kubeconfig,
		"--launcher-image", "varve-launcher:bench", "--varve-image", "varve:bench", "--leader-elect")
	command.Stdout, command.Stderr = io.Discard, log
	ended, err := process.Start(command)
	if err != nil {
		return 0, nil, err
	}
	return command.Process.Pid, func() {
		_ = command.Process.Kill()
		<-ended
		_ = errors.Join(log.Close(), os.RemoveAll(directory))
	}, nil
}

// waitSettled waits until each schedule was looked at.
func waitSettled(ctx context.Context, o *options, c client.Client) error {
	const what = "all schedules to be looked at"
	return wait.For(ctx, 5*time.Minute, what, func(ctx context.Context) (bool, string, error) {
		var list harvesterv1.ScheduleVMBackupList
		if err := c.List(ctx, &list); err != nil {
			return false, "", err
		}
		seen := 0
		for i := range list.Items {
			if list.Items[i].Status.NextScheduleTime != nil {
				seen++
			}
		}
		return seen == o.schedules+1, fmt.Sprintf("%d of %d", seen, o.schedules+1), nil
	})
}

// watchIdle measures the controller's processor time and memory, and how late the backups of every minute are made.
func watchIdle(ctx context.Context, o *options, c client.WithWatch, pid int) ([]report.Row, error) {
	backups, err := c.Watch(ctx, &harvesterv1.VirtualMachineBackupList{}, client.InNamespace(ticking))
	if err != nil {
		return nil, err
	}
	defer backups.Stop()
	var processor, memory, late report.Sample
	before, err := process.ProcessorTime(pid)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(o.measures)
	seen := map[string]bool{}
	for len(processor) < o.rounds {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case e := <-backups.ResultChan():
			b, ok := e.Object.(*harvesterv1.VirtualMachineBackup)
			if !ok {
				return nil, fmt.Errorf("the watch broke off: %+v", e.Object)
			}
			due, err := time.Parse(harvesterv1.ScheduledTimeLayout, b.Labels[harvesterv1.LabelScheduledTime])
			if err != nil {
				return nil, fmt.Errorf("backup %s: %w", b.Name, err)
			}
			if !seen[b.Name] {
				seen[b.Name] = true
				late = append(late, time.Since(due).Seconds())
			}
		case <-time.After(time.Until(end)):
			now, err := process.ProcessorTime(pid)
			if err != nil {
				return nil, fmt.Errorf("the controller has ended, see bench-controller.log: %w", err)
			}
			resident, _, err := process.Memory(pid)
			if err != nil {
				return nil, err
			}
			processor = append(processor, 100*(now-before).Seconds()/o.measures.Seconds())
			memory = append(memory, float64(resident)/(1<<20))
			before, end = now, end.Add(o.measures)
		}
	}
	if len(late) == 0 {
		return nil, errors.New("no backup was made while it was measured, see bench-controller.log")
	}
	what := fmt.Sprintf("controller with %d schedules, %d backups and %d repositories, one of them of 40 million "+
		"contents; nothing due", o.schedules, o.schedules*o.backups, o.repositories)
	const percent, mib, seconds, id = "% of a processor", "MiB", "s", "schedule-1000-"
	return []report.Row{
		report.Smaller(id+"cpu", what, percent, processor, "aim", report.Sample{1}),
		report.Smaller(id+"memory", "resident memory of that", mib, memory, "aim", report.Sample{256}),
		report.Smaller(id+"late", "from the due time to the backup object", seconds, late, "aim", report.Sample{1}),
	}, nil
}
