//go:build soak

package soak

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

const (
	// moveTimeout is how long the uploads of one moment may take while their movers are killed.
	moveTimeout = 10 * time.Minute
	// busy writes all the time, until the guest ends: 64 KiB, at places scattered over 128 MiB of each disk, about five times a second.
	busy = `cat >/tmp/busy <<'END'
i=0
while :; do
  i=$(( (i * 5 + 1237) % 2048 ))
  for d in one two; do dd if=/dev/urandom of=/disks/$d/busy bs=65536 count=1 seek=$i conv=notrunc 2>/dev/null; done
  sleep 0.2
done
END
nohup sh /tmp/busy </dev/null >/dev/null 2>&1 &
`
)

// TestMoves_underKills stores a machine that writes all the time in a bucket, by changed blocks: a full and
// SOAK_MOVES (10) incrementals. The controller that leads is killed again and again meanwhile, movers are killed, and
// the handler once. Each moment comes back bit for bit as it was frozen, and one by kopia's CLI.
func TestMoves_underKills(t *testing.T) {
	seed, moves := envInt(t, "SOAK_SEED", time.Now().UnixNano()), envInt(t, "SOAK_MOVES", 10)
	t.Logf("SOAK_SEED=%d SOAK_MOVES=%d", seed, moves)
	ctx := t.Context()
	s := open(t, "varve-soak-move", rand.New(rand.NewPCG(uint64(seed), 1)))
	disks := []lab.Disk{{Name: "one", Bytes: gib}, {Name: "two", Bytes: 768 * mib}}
	s.must(s.CreateClaims(ctx, vmName, disks...))
	for _, d := range disks {
		s.must(s.PopulateExt4(ctx, vmName, d.Name, d.Bytes/8*7/mib*mib, d.Name, 0))
	}
	s.must(s.Claim(ctx, "scratch", 2*gib, corev1.PersistentVolumeFilesystem))
	vm, err := s.Machine(vmName, lab.TestSystem, map[string]string{lab.TrackingLabel: "true"}, disks...)
	s.must(err)
	*vm.Spec.RunStrategy = kubevirtv1.RunStrategyAlways
	s.must(s.Create(ctx, vm))
	s.must(s.Create(ctx, s.Tracker("t", vmName)))
	at, err := s.BucketLocation(ctx, "soak-move", os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	t.Cleanup(func() { s.must(at.Remove(context.WithoutCancel(ctx))) })
	s.ready()
	_, err = s.guest(lab.Fill("/disks/one/base", 160) + lab.Fill("/disks/two/base", 160) +
		`for d in one two; do head -c 134217728 /dev/zero >/disks/$d/busy; done; sync` + "\n" + busy)
	s.must(err)

	store, _, err := s3.OnBox(os.Getenv("VARVE_BOX_DIR"))
	s.must(err)
	// An earlier run that was killed has left its DataUploads, which go ten minutes after their location.
	m := &movesUnderKills{soak: s, at: at, bucket: store.Client(t), run: strconv.FormatInt(time.Now().Unix(), 36)}
	t.Cleanup(func() { s.must(s.DeleteUploads(context.WithoutCancel(ctx), 12*time.Minute)) })
	before, movers, began := s.census(), s.followMovers(), time.Now()
	stop := s.killLeaders(ctx)
	for i := range int(moves) + 1 {
		m.store(i)
	}
	if m.kills == 0 {
		t.Error("no mover was killed")
	}
	for i, stored := range m.moments {
		m.comesBack(i, stored)
	}
	checkLeaderKills(t, stop, began)
	s.waitNothingLeft(before)
	movers.check(t, len(m.moments)*len(disks)*2, m.kills)
	t.Logf("%d moments; %d movers killed while they worked; incrementals: %d MiB dirty, %d MiB sent by launchers, %d MiB new in the bucket; %d volumes compared",
		len(m.moments), m.kills, m.dirty/mib, m.sent/mib, m.stored/mib, m.compared)
	m.restoreWithKopia(m.moments[len(m.moments)/2], "one")
}

type movesUnderKills struct {
	*soak
	at      *lab.Location
	run     string
	bucket  *minio.Client
	moments []*lab.MachineUploads
	kills   int
	// dirty is what had changed, sent what launchers sent to movers for that, and stored by how much the bucket grew, over all incrementals.
	dirty, sent, stored int64
}

// store stores the machine as it is frozen, and kills movers in two moments of three.
func (m *movesUnderKills) store(i int) {
	ctx, stop := context.WithCancel(m.t.Context())
	defer stop()
	name := fmt.Sprintf("%s-m%02d", m.run, i)
	_, err := m.guest(fmt.Sprintf(`for d in one two; do head -c %d /disks/$d/base >/disks/$d/r%d; head -c 2000000 /dev/urandom >>/disks/$d/r%[2]d; done; rm -f /disks/one/r%d; sync`,
		20*mib+m.rand.Int64N(30*mib), i%4, (i+2)%4))
	m.must(err)
	var sent atomic.Int64
	go m.follow(ctx, m.Namespace+"-"+name, &sent)
	killed := make(chan int, 1)
	wanted, pause := i%3, time.Duration(m.rand.IntN(1500))*time.Millisecond
	go func() { killed <- m.killMovers(ctx, datamove.LabelPodUpload, m.Namespace+"-"+name, wanted, pause) }()
	if i == 2 {
		go func() { m.t.Logf("%s: killed the %s", name, m.strike(1, 3*time.Second)) }() // the handler
	}
	began, held := time.Now(), m.bucketBytes()
	stored, err := m.UploadMoment(ctx, name, vmName, "t", "scratch", `true`, moveTimeout, m.at, disksOf("one", "two")...)
	m.must(err)
	took := time.Since(began)
	stop()
	n := <-killed
	m.kills += n
	m.moments = append(m.moments, stored)
	for volume, u := range stored.Uploads {
		if why := u.Status.DataMoverResult[datamove.ResultFullReason]; i > 0 && why != "" {
			m.t.Errorf("%s %s is not incremental: %s", name, volume, why)
		}
	}
	grown := m.bucketBytes() - held
	m.t.Logf("%s in %s: %d MiB dirty, %d MiB sent by the launcher, %d MiB new in the bucket; movers killed: %d", name, took.Round(100*time.Millisecond),
		stored.DirtyBytes/mib, sent.Load()/mib, grown/mib, n)
	if i == 0 {
		return
	}
	// 4 MiB of each disk are unchanged blocks that are compared with the parent, which the bound allows where 20 MiB are dirty.
	// Who takes over from a mover that was killed reads again what is not in the bucket yet.
	if most := 1.2 * float64(stored.DirtyBytes); float64(grown) > most || float64(sent.Load()) > most*float64(1+n) || sent.Load() == 0 {
		m.t.Errorf("%s moved %d bytes, and the bucket grew by %d, for %d that were dirty", name, sent.Load(), grown, stored.DirtyBytes)
	}
	m.dirty, m.sent, m.stored = m.dirty+stored.DirtyBytes, m.sent+sent.Load(), m.stored+grown
}

// bucketBytes returns how much the location has in the bucket.
func (m *movesUnderKills) bucketBytes() (sum int64) {
	m.t.Helper()
	objects := m.bucket.ListObjects(m.t.Context(), m.at.Spec.ObjectStorage.Bucket, minio.ListObjectsOptions{Prefix: m.at.Spec.ObjectStorage.Prefix + "/", Recursive: true})
	for o := range objects {
		m.must(o.Err)
		sum += o.Size
	}
	return sum
}

func disksOf(names ...string) []lab.Disk {
	disks := make([]lab.Disk, len(names))
	for i, name := range names {
		disks[i].Name = name
	}
	return disks
}

// follow keeps what the launcher has sent of a backup, as the backup's status says, until ctx ends.
func (m *movesUnderKills) follow(ctx context.Context, backup string, sent *atomic.Int64) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		b := &backupv1alpha1.VirtualMachineBackup{}
		if err := m.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: backup}, b); err == nil {
			sent.Store(max(sent.Load(), b.Status.MovedBytes))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// killMovers kills this many movers of a kind whose objects have names with a prefix, each once it has run for a while, until ctx ends. It
// returns how many it killed.
func (m *movesUnderKills) killMovers(ctx context.Context, label, prefix string, wanted int, after time.Duration) (n int) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	dead := map[int]bool{}
	for n < wanted {
		select {
		case <-ctx.Done():
			return n
		case <-tick.C:
		}
		var pods corev1.PodList
		if err := m.List(ctx, &pods, client.InNamespace(layout.Namespace), client.HasLabels{label}); err != nil {
			continue
		}
		for _, pod := range pods.Items {
			if n == wanted || !strings.HasPrefix(pod.Labels[label], prefix) {
				continue
			}
			found, err := processes(pod.UID)
			if err != nil {
				continue
			}
			for _, pid := range found["varve"] {
				if n == wanted || dead[pid] {
					continue
				}
				time.Sleep(after)
				dead[pid] = true
				if syscall.Kill(pid, syscall.SIGKILL) == nil { // else it has ended
					n++
				}
			}
		}
	}
	return n
}

// comesBack restores a moment into new claims, and compares them. A mover of every third moment is killed.
func (m *movesUnderKills) comesBack(i int, stored *lab.MachineUploads) {
	ctx, stop := context.WithCancel(m.t.Context())
	defer stop()
	if i%3 == 1 {
		killed := make(chan int, 1)
		go func() { killed <- m.killMovers(ctx, datamove.LabelPodDownload, stored.Group, 1, 0) }()
		defer func() { stop(); m.kills += <-killed }()
	}
	for volume, u := range stored.Uploads {
		m.must(m.Download(ctx, program(m.t), os.Getenv("KUBECONFIG"), u, u.Name, corev1.PersistentVolumeFilesystem))
		box, err := m.Toolbox(ctx, "compare-"+u.Name, u.Name)
		m.must(err)
		text, err := box.Run(ctx, "sha256sum /mnt/"+u.Name+"/disk.img")
		m.must(err)
		m.must(box.Close(ctx))
		if got, _, _ := strings.Cut(text, " "); got != stored.Sums[volume] {
			verdict.Errorf(m.t, "%s, volume %s: restored %s, the disk held %s", stored.Group, volume, got, stored.Sums[volume])
		}
		m.compared++
		claim := &corev1.PersistentVolumeClaim{}
		claim.Namespace, claim.Name = m.Namespace, u.Name
		m.must(m.Delete(ctx, claim))
	}
}

// restoreWithKopia restores a volume with the upstream kopia from the bucket, with nothing of Varve but the password.
func (m *movesUnderKills) restoreWithKopia(stored *lab.MachineUploads, volume string) {
	t, ctx := m.t, m.t.Context()
	password, err := exec.CommandContext(ctx, program(t), "location", "password", "export", m.at.Name, "-n", m.at.Namespace, "--kubeconfig", os.Getenv("KUBECONFIG")).Output()
	m.must(err)
	store, _, err := s3.OnBox(os.Getenv("VARVE_BOX_DIR"))
	m.must(err)
	dir := t.TempDir()
	authority := filepath.Join(dir, "ca.pem")
	m.must(os.WriteFile(authority, store.Authority, 0o600))
	kopia := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, s3.Program(t, "kopia"), append([]string{"--config-file=" + filepath.Join(dir, "repository.config"), "--log-dir=" + dir}, args...)...)
		cmd.Env = append(os.Environ(), "KOPIA_PASSWORD="+strings.TrimSuffix(string(password), "\n"), "KOPIA_CHECK_FOR_UPDATES=false",
			"AWS_ACCESS_KEY_ID="+store.AccessKey, "AWS_SECRET_ACCESS_KEY="+store.SecretKey)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("kopia %v: %v", args, err)
		}
		return string(out)
	}
	prefix := strings.TrimSuffix(m.at.Spec.ObjectStorage.Prefix, "/") + "/plugins/varve/" + m.Namespace + "/"
	kopia("repository", "connect", "s3", "--bucket="+store.Bucket, "--endpoint="+store.Address, "--region="+store.Region, "--prefix="+prefix,
		"--root-ca-pem-path="+authority, "--cache-directory="+filepath.Join(dir, "cache"))
	id, err := datamove.ParseSnapshotID(stored.Uploads[volume].Status.SnapshotID)
	m.must(err)
	// The tag is what docs/format.md has.
	listed := kopia("snapshot", "list", "--all", "--tags=varve-id:"+id.Point, "--json")
	_, snapshot, ok := strings.Cut(listed, `"id":"`)
	snapshot, _, _ = strings.Cut(snapshot, `"`)
	if !ok {
		verdict.Fatalf(t, "kopia has no snapshot of restore point %s: %s", id.Point, listed)
	}
	to := filepath.Join(dir, "out")
	kopia("snapshot", "restore", snapshot, to)
	file, err := os.Open(filepath.Join(to, datamove.DiskName))
	m.must(err)
	defer file.Close()
	h := sha256.New()
	_, err = io.Copy(h, file)
	m.must(err)
	if got := hex.EncodeToString(h.Sum(nil)); got != stored.Sums[volume] {
		verdict.Errorf(t, "kopia restores %s of %s as %s, the disk held %s", volume, stored.Group, got, stored.Sums[volume])
	}
	t.Logf("kopia restored %s of %s from the bucket, as it was", volume, stored.Group)
}
