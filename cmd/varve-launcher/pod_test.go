//go:build libvirt_dlopen

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirt"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/domain/domaintest"
	pb "github.com/varvebackup/varve/internal/launcher/launcherpb"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/guestagent"
)

// launcherVariable is the environment variable that makes the test binary the runtime of the container, or the launcher.
const (
	launcherVariable = "VARVE_LAUNCHER_TEST"
	containerRuntime = "runtime"
	// nodeVariable is the name of the pod's node, and asideVariable a directory that holds what this pod does not share
	// with that of another launcher.
	nodeVariable  = "VARVE_LAUNCHER_TEST_NODE"
	asideVariable = "VARVE_LAUNCHER_TEST_ASIDE"
	theLauncher   = "launcher"
)

// The tests run the real program as process 1 of its own PID and mount namespaces, as in a pod: as the user of launcher
// pods, without capabilities, on a read-only root. They talk to it as the handler does. Utility volumes are mounted
// outside and propagate into it.
func TestMain(m *testing.M) {
	switch os.Getenv(launcherVariable) {
	case containerRuntime:
		fmt.Fprintln(os.Stderr, becomeLauncher())
		os.Exit(3)
	case theLauncher:
		main()
	default:
		os.Exit(domaintest.Run(m))
	}
}

// becomeLauncher confines this process as a container's runtime does and replaces its program. It returns only to report
// an error.
func becomeLauncher() error {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""),
		unix.Sethostname([]byte(os.Getenv(nodeVariable))),
		enterAside(os.Getenv(asideVariable)),
		unix.Mount("proc", "/proc", "proc", 0, ""),
		unix.Mount("", "/run", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		unix.Mount("", "/tmp", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		unix.Mount("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		os.Setenv(launcherVariable, theLauncher),
	)
	if err != nil {
		return err
	}
	user, group := fmt.Sprint(layout.LauncherUser), fmt.Sprint(layout.LauncherGroup)
	command := []string{"setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"}
	return unix.Exec("/usr/bin/setpriv", append(command, os.Args...), os.Environ())
}

// enterAside gives the launcher sockets and private files of its own.
func enterAside(dir string) error {
	if dir == "" {
		return nil
	}
	return errors.Join(
		unix.Mount(dir+"/sockets", layout.SocketsDir, "", unix.MS_BIND, ""),
		unix.Mount(dir+"/private", layout.PrivateDir, "", unix.MS_BIND, ""),
	)
}

const mib = int64(1) << 20

// pod is a launcher pod. Its volumes outlive the launchers that run in it one after another.
type pod struct {
	testing.TB
	dir  string
	vmi  *kubevirtv1.VirtualMachineInstance
	srcs []*pb.DiskSource
	// starts is how many runs the claims have had.
	starts int
	// node is the name of its node. aside is where its sockets and private files are if not at their usual places
	// (neighbour).
	node, aside string

	cmd    *exec.Cmd
	conn   *grpc.ClientConn
	client pb.LauncherClient
	exited chan int
	// libvirt and dom are the test's own connection to the guest.
	libvirt *libvirt.Connect
	dom     *libvirt.Domain
}

// newPod makes the volumes: "fs" (ext4, mounted by the guest), "data" (bare, dataBytes of it random) and the state volume.
func newPod(tb testing.TB, dataBytes int64) *pod {
	tb.Helper()
	p := &pod{TB: tb, dir: tb.TempDir(), node: "source"}
	tb.Cleanup(p.showLogs)
	tb.Setenv("LIBVIRT_DEFAULT_URI", domaintest.URI) // for virsh, as in the pod
	kernel, initrd := domaintest.GuestKernel(tb)
	p.run("rm", "-rf", "/run/varve")
	// The logs and the termination message are there.
	p.run("chmod", "0755", filepath.Dir(p.dir))
	p.run("chmod", "0777", p.dir)
	p.mount(p.dir, p.dir, "--bind") // it stays writable on the read-only root
	p.run("mkdir", "-p", layout.KernelDir, layout.UtilityDir)
	p.run("cp", kernel, layout.KernelFile)
	p.run("cp", initrd, layout.InitrdFile)
	p.mount(p.dir+"/sockets", layout.SocketsDir, "--bind")
	p.mount("private", layout.PrivateDir, "-t", "tmpfs")
	p.mount(p.dir+"/state", layout.StateDir, "--bind")
	p.give(layout.SocketsDir, layout.PrivateDir, layout.StateDir)
	p.run("mount", "--bind", layout.UtilityDir, layout.UtilityDir)
	p.run("mount", "--make-shared", layout.UtilityDir)
	tb.Cleanup(func() { p.run("umount", "-l", layout.UtilityDir) })
	for _, volume := range []string{"fs", "data"} {
		p.mount(filepath.Join(p.dir, volume), filepath.Join(layout.DisksDir, volume), "--bind")
	}
	p.sparse(layout.DiskFile("fs"), 64*mib)
	p.run("mkfs.ext4", "-q", layout.DiskFile("fs"))
	p.sparse(layout.DiskFile("data"), 2*dataBytes)
	p.run("dd", "if=/dev/urandom", "of="+layout.DiskFile("data"), "bs=1M", fmt.Sprintf("count=%d", dataBytes/mib), "conv=notrunc", "status=none")
	p.give(filepath.Dir(layout.DiskFile("fs")), layout.DiskFile("fs"), filepath.Dir(layout.DiskFile("data")), layout.DiskFile("data"))
	p.vmi = instance("fs", "data")
	for _, volume := range []string{"fs", "data"} {
		p.srcs = append(p.srcs, &pb.DiskSource{Volume: volume, ClaimUid: "uid-" + volume})
	}
	return p
}

func instance(volumes ...string) *kubevirtv1.VirtualMachineInstance {
	vmi := &kubevirtv1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To(int64(60))
	vmi.Spec.Domain.Memory = &kubevirtv1.Memory{Guest: ptr.To(resource.MustParse("192Mi"))}
	vmi.Spec.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
		KernelArgs: "console=ttyS0 quiet",
		Container:  &kubevirtv1.KernelBootContainer{Image: "guest", KernelPath: "/vmlinuz", InitrdPath: "/initrd"},
	}}
	for _, v := range volumes {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, kubevirtv1.Disk{Name: v, Serial: v, Disk: &kubevirtv1.DiskTarget{Bus: "virtio"}})
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, kubevirtv1.Volume{Name: v, PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{}})
	}
	return vmi
}

func (p *pod) mount(source, at string, flags ...string) {
	p.Helper()
	if flags[0] == "--bind" {
		p.run("mkdir", "-p", source)
	}
	p.run("mkdir", "-p", at)
	p.run("mount", append(flags, source, at)...)
	p.Cleanup(func() { p.run("umount", "-l", at) })
}

func (p *pod) sparse(path string, size int64) {
	p.Helper()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		p.Fatal(err)
	}
}

// give makes the launcher's user the owner of files and directories.
func (p *pod) give(paths ...string) {
	p.Helper()
	if err := domaintest.GiveToLauncher(paths...); err != nil {
		p.Fatal(err)
	}
}

// target makes a utility volume, an ext4 file system of its own, and mounts the machine's directory of it, as the handler
// does.
func (p *pod) target(name string, size int64) string {
	p.Helper()
	image, volume := filepath.Join(p.dir, name+".img"), filepath.Join(p.dir, name+".mounted")
	p.sparse(image, size)
	p.run("mkfs.ext4", "-q", "-m", "0", image)
	p.mount(image, volume, "-o", "loop")
	p.mount(filepath.Join(volume, "vm"), filepath.Join(layout.Utility(name), "vm"), "--bind")
	p.give(filepath.Join(volume, "vm"))
	return layout.Utility(name)
}

// launch runs the launcher.
func (p *pod) launch() {
	p.Helper()
	// A container's own files are new each time. Only QEMU's capabilities stay cached, because querying them takes
	// seconds.
	for _, dir := range []string{layout.LibvirtRunDir, layout.LibvirtConfigDir, filepath.Dir(layout.NBDSocket)} {
		p.run("rm", "-rf", p.place(dir))
	}
	log, err := os.OpenFile(p.dir+"/launcher.log"+p.suffix(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "--log-level=debug", "--serial-log="+p.dir+"/serial.log",
		"--termination-log="+p.dir+"/termination"+p.suffix())
	cmd.Env = append(os.Environ(), launcherVariable+"="+containerRuntime, nodeVariable+"="+p.node,
		asideVariable+"="+p.aside)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		p.Fatal(err)
	}
	exited := make(chan int, 1)
	go func() {
		_ = cmd.Wait() // the exit code says it all
		exited <- cmd.ProcessState.ExitCode()
	}()
	p.cmd, p.exited = cmd, exited
	p.conn, err = grpc.NewClient("unix://"+p.place(layout.Socket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.Fatal(err)
	}
	p.client = pb.NewLauncherClient(p.conn)
	p.Cleanup(p.end)
}

// showLogs logs what helps to understand a failed test.
func (p *pod) showLogs() {
	if !p.Failed() {
		return
	}
	for _, name := range []string{
		"launcher.log", "launcher.log-target", "serial.log", "termination",
		"termination-target",
	} {
		data, err := os.ReadFile(filepath.Join(p.dir, name))
		p.Logf("%s (%v):\n%s", name, err, data[max(0, len(data)-20000):])
	}
}

// end kills what is still running.
func (p *pod) end() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may already have ended
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.Error("the launcher could not be killed")
	}
	p.closed()
}

func (p *pod) closed() {
	if err := p.conn.Close(); err != nil {
		p.Error(err)
	}
	p.cmd = nil
	if p.dom != nil {
		_ = p.dom.Free() // its libvirtd is gone
		_, _ = p.libvirt.Close()
		p.dom = nil
	}
}

// exit tells the launcher that its guest's end has been seen.
func (p *pod) exit() {
	p.Helper()
	if _, err := p.client.Exit(p.Context(), &pb.ExitRequest{}); err != nil {
		p.Fatal(err)
	}
}

// wait returns the launcher's exit code.
func (p *pod) wait() int {
	p.Helper()
	select {
	case code := <-p.exited:
		p.closed()
		return code
	case <-time.After(90 * time.Second):
		p.Fatal("the launcher does not end")
		return -1
	}
}

func (p *pod) start(tracked bool) error {
	p.Helper()
	data, err := json.Marshal(p.vmi)
	if err != nil {
		p.Fatal(err)
	}
	p.starts++
	for _, source := range p.srcs {
		source.Run, source.PreviousRun = fmt.Sprint("run-", p.starts), fmt.Sprint("run-", p.starts-1)
	}
	_, err = p.client.Start(p.Context(), &pb.StartRequest{
		Instance: data, UseEmulation: true, ChangedBlockTracking: tracked, Disks: p.srcs,
	}, grpc.WaitForReady(true))
	return err
}

// up runs a launcher and its guest until the agent answers.
func (p *pod) up() *pb.State {
	p.Helper()
	p.launch()
	if err := p.start(true); err != nil {
		p.Fatal(err)
	}
	return p.await("the agent answers", func(s *pb.State) bool {
		return s.Phase == pb.State_RUNNING && s.AgentConnected && s.GuestOs != nil && len(s.Disks) == 2
	})
}

// await watches the state until holds returns true.
func (p *pod) await(what string, holds func(*pb.State) bool) *pb.State {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 4*time.Minute)
	defer cancel()
	stream, err := p.client.Watch(ctx, &pb.WatchRequest{}, grpc.WaitForReady(true))
	if err != nil {
		p.Fatal(err)
	}
	var last *pb.State
	for {
		state, err := stream.Recv()
		if err != nil {
			p.Fatalf("waiting for: %s: %v; last state: %v", what, err, last)
		}
		if last = state; holds(state) {
			return state
		}
	}
}

// request returns a request to back up both disks.
func (p *pod) request(uid, target string) *pb.BeginBackupRequest {
	return &pb.BeginBackupRequest{
		Uid: uid, Name: "backup-" + uid, Namespace: "ns", Vm: "vm", Tracker: "t", Checkpoint: "cp-" + uid,
		Volumes:      []*pb.BackupVolume{{Volume: "fs", FullReason: "NoCheckpoint"}, {Volume: "data", FullReason: "NoCheckpoint"}},
		TargetVolume: target, Directory: "vm/backup-" + uid,
	}
}

// continuing makes a request incremental to a backup that is in the directory target.
func (p *pod) continuing(req *pb.BeginBackupRequest, target, base string) *pb.BeginBackupRequest {
	p.Helper()
	req.BaseCheckpoint, req.BaseBackupUid, req.BaseDirectory = "cp-"+base, base, "vm/backup-"+base
	data, err := os.ReadFile(filepath.Join(target, req.BaseDirectory, layout.BackupManifest))
	if err != nil {
		p.Fatal(err)
	}
	req.BaseManifestSha256 = fmt.Sprintf("%x", sha256.Sum256(data))
	for _, v := range req.Volumes {
		v.Incremental, v.FullReason = true, ""
	}
	return req
}

func (p *pod) begin(req *pb.BeginBackupRequest) {
	p.Helper()
	if _, err := p.client.BeginBackup(p.Context(), req); err != nil {
		p.Fatal(err)
	}
}

// ended waits for the end of a backup.
func (p *pod) ended(uid string) *pb.Backup {
	p.Helper()
	return p.await("backup "+uid+" ends", func(s *pb.State) bool {
		return s.Backup.GetUid() == uid && (s.Backup.Phase == pb.Backup_DONE || s.Backup.Phase == pb.Backup_FAILED)
	}).Backup
}

// failed waits for a backup to fail in a certain way, and checks that it has left nothing.
func (p *pod) failed(uid string, want pb.Backup_Failure) *pb.Backup {
	p.Helper()
	b := p.ended(uid)
	if b.Failure != want || b.Message == "" {
		p.Errorf("backup %s: %v (%q), want %v", uid, b.Failure, b.Message, want)
	}
	found, err := filepath.Glob(layout.UtilityDir + "/*/vm/backup-" + uid + "*")
	if err != nil || len(found) > 0 {
		p.Errorf("backup %s left %v (%v)", uid, found, err)
	}
	return b
}

// done waits for a backup to succeed.
func (p *pod) done(uid string) *pb.Backup {
	p.Helper()
	b := p.ended(uid)
	if b.Phase != pb.Backup_DONE {
		p.Fatalf("backup %s: %v: %s", uid, b.Failure, b.Message)
	}
	return b
}

// guest runs a shell command in the guest, through the agent, and returns its output.
func (p *pod) guest(script string) string {
	p.Helper()
	out, err := p.tryGuest(script)
	if err != nil {
		p.Fatalf("in the guest: %s: %v", script, err)
	}
	return out
}

// fire runs a shell command in the guest and does not wait for its end.
func (p *pod) fire(script string) {
	p.Helper()
	if _, err := guestagent.Agent(p.agent).Start(p.Context(), script); err != nil {
		p.Fatalf("in the guest: %s: %v", script, err)
	}
}

func (p *pod) tryGuest(script string) (string, error) {
	return guestagent.Agent(p.agent).Run(p.Context(), 4*time.Minute, script)
}

func (p *pod) agent(_ context.Context, command string) (string, error) {
	return p.domain().QemuAgentCommand(command, 10, 0)
}

// domain returns the guest, through the test's own connection to the launcher's libvirtd.
func (p *pod) domain() *libvirt.Domain {
	p.Helper()
	if p.dom != nil {
		return p.dom
	}
	conn, err := libvirt.NewConnect("qemu+unix:///session?socket=" + p.place(layout.LibvirtSocket))
	if err != nil {
		p.Fatal(err)
	}
	p.dom, err = conn.LookupDomainByName("ns_vm")
	if err != nil {
		p.Fatal(err)
	}
	p.libvirt = conn
	return p.dom
}

// beginSlowly begins a backup whose job is slowed down in its middle. On a busy machine the job may end before it can
// be slowed down: then the backup is undone and begun again.
func (p *pod) beginSlowly(req *pb.BeginBackupRequest) {
	p.Helper()
	for range 10 {
		if p.beginSlowed(req) {
			return
		}
		p.done(req.Uid)
		p.run("rm", "-r", layout.Utility(req.TargetVolume)+"/"+req.Directory)
		_, err := p.client.ForgetBackup(p.Context(), &pb.ForgetBackupRequest{Uid: req.Uid})
		if err == nil {
			_, err = p.client.DeleteCheckpoints(p.Context(), &pb.DeleteCheckpointsRequest{Names: []string{req.Checkpoint}})
		}
		if err != nil {
			p.Fatal(err)
		}
	}
	p.Fatalf("no job of backup %s was slow enough to be slowed down", req.Uid)
}

// beginSlowed reports whether the job was slowed down before it ended.
func (p *pod) beginSlowed(req *pb.BeginBackupRequest) bool {
	p.Helper()
	domain := p.domain()
	ctx, cancel := context.WithTimeout(p.Context(), 20*time.Second)
	defer cancel()
	slowed := make(chan bool, 1)
	go func() {
		defer close(slowed)
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			if n, err := setSpeed(domain, slow); n > 0 || err != nil {
				slowed <- err == nil && lasts(domain) // an error: the job has just ended
				return
			}
		}
	}()
	p.begin(req)
	begun := func(s *pb.State) bool { return s.Backup.GetUid() == req.Uid && s.Backup.Phase >= pb.Backup_COPYING }
	if p.await("backup "+req.Uid+" copies", begun).Backup.Phase > pb.Backup_COPYING {
		cancel()
	}
	if <-slowed && p.await("backup "+req.Uid+" copies", begun).Backup.Phase == pb.Backup_COPYING {
		return true
	}
	p.fullSpeed()
	return false
}

// lasts reports whether the rest of the jobs keeps a slow job busy for as long as a guest takes to shut down.
func lasts(domain *libvirt.Domain) bool {
	jobs, err := blockJobs(domain)
	left := int64(0)
	for _, job := range jobs {
		left += job.Len - job.Offset
	}
	return err == nil && left > 120*slow
}

// fullSpeed lets a slowed job continue at full speed.
func (p *pod) fullSpeed() {
	p.Helper()
	if _, err := setSpeed(p.domain(), 0); err != nil {
		p.Fatal(err)
	}
}

// setSpeed sets the speed of all jobs and returns how many there are.
func setSpeed(domain *libvirt.Domain, bytesPerSecond int64) (int, error) {
	jobs, err := blockJobs(domain)
	if err != nil {
		return 0, err
	}
	for _, job := range jobs {
		command := fmt.Sprintf(`{"execute":"block-job-set-speed","arguments":{"device":%q,"speed":%d}}`, job.Device, bytesPerSecond)
		if _, err := domain.QemuMonitorCommand(command, 0); err != nil {
			return 0, err
		}
	}
	return len(jobs), nil
}

// blockJob is a job of QEMU: Offset of Len bytes are done.
type blockJob struct {
	Device      string
	Len, Offset int64
}

func blockJobs(domain *libvirt.Domain) ([]blockJob, error) {
	said, err := domain.QemuMonitorCommand(`{"execute":"query-block-jobs"}`, 0)
	if err != nil {
		return nil, err
	}
	var jobs struct{ Return []blockJob }
	err = json.Unmarshal([]byte(said), &jobs)
	return jobs.Return, err
}

func (p *pod) run(name string, args ...string) string {
	p.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		p.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out.Bytes())
		p.FailNow()
	}
	return out.String()
}

func (p *pod) termination() termination {
	p.Helper()
	data, err := os.ReadFile(p.dir + "/termination" + p.suffix())
	if err != nil {
		p.Fatal(err)
	}
	var t termination
	if err := json.Unmarshal(data, &t); err != nil {
		p.Fatal(err)
	}
	return t
}
