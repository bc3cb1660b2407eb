//go:build nbd_interop

package exporter

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/jsonpath"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/export/exporttest"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/tunnel"
	"github.com/varvebackup/varve/internal/extent"
)

// stub is kubectl in the examples: it sends its arguments and its input to the cluster of this test. The arguments end with an
// empty one.
const stub = `#!/bin/sh
{
	for argument in "$@"; do printf '%%s\0' "$argument"; done
	printf '\0'
	case " $* " in *" - "* | *"/dev/stdin "*) cat ;; esac
} | curl --silent --show-error --fail-with-body --data-binary @- %s
`

// cluster is a Kubernetes with one machine: it understands the guide's commands of kubectl. A backup in pull mode is Ready at
// once, and is served by the program of an export pod through a tunnel.
type cluster struct {
	*testing.T

	decoder runtime.Decoder
	// disks is the present content of the machine's disks, and evolve writes to them, as the guest does.
	disks  map[string][]byte
	random *rand.Rand

	mu       sync.Mutex
	secrets  map[string][]byte
	claims   map[string]bool
	tracker  *backupv1.VirtualMachineBackupTracker
	backups  map[string]*backupv1.VirtualMachineBackup
	stopping map[string]func()
	// changed has what the guest has written to since the tracker's checkpoint.
	changed map[string][]bool
	// taken has the content of each backup's point in time, by UID.
	taken map[types.UID]map[string][]byte
	order []types.UID
	// cut is how often a reading was broken off, and late how often a launcher came after its clients.
	cut, late atomic.Int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{backupv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &cluster{
		T: t, decoder: serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(), random: rand.New(rand.NewPCG(1, 2)),
		disks:   map[string][]byte{"root": exporttest.NewVolume("root", 20<<20+512, false, 1).Content, "data": exporttest.NewVolume("data", 3<<20, false, 2).Content},
		secrets: map[string][]byte{}, claims: map[string]bool{}, backups: map[string]*backupv1.VirtualMachineBackup{}, stopping: map[string]func(){},
		changed: map[string][]bool{}, taken: map[types.UID]map[string][]byte{},
	}
	t.Cleanup(func() {
		for _, stop := range c.stopping {
			stop()
		}
	})
	return c
}

// ServeHTTP runs one command of kubectl.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.Error(err)
	}
	line, input, _ := bytes.Cut(body, []byte("\x00\x00"))
	args := strings.Split(string(line), "\x00")
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, err := c.kubectl(args, input)
	if err != nil {
		c.Errorf("kubectl %q: %v", args, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Write(answer) // the command notices
}

func (c *cluster) kubectl(args []string, input []byte) ([]byte, error) {
	flags := map[string]string{}
	words := slices.DeleteFunc(slices.Clone(args), func(word string) bool {
		name, value, ok := strings.Cut(word, "=")
		if ok && strings.HasPrefix(name, "--") {
			flags[name] = value
		}
		return ok && strings.HasPrefix(name, "--")
	})
	switch {
	case words[0] == "apply" && words[1] == "-f":
		return nil, c.applyFile(words[2], input)
	case words[0] == "create" && words[1] == "secret" && words[2] == "generic" && flags["--from-file"] == "token=/dev/stdin":
		c.secrets[words[3]] = input
		return nil, nil
	case words[0] == "wait":
		b := c.backups[strings.TrimPrefix(words[1], "vmbackup/")]
		condition, ok := strings.CutPrefix(flags["--for"], "condition=")
		if b == nil || !ok || !meta.IsStatusConditionTrue(b.Status.Conditions, condition) {
			return nil, errors.New("it does not come")
		}
		return nil, nil
	case words[0] == "patch" && words[1] == "vmbackup" && words[3] == "-p" && flags["--type"] == "merge":
		var patch struct {
			Spec struct{ TTL metav1.Duration }
		}
		if err := json.Unmarshal([]byte(words[4]), &patch); err != nil || patch.Spec.TTL.Duration <= c.backups[words[2]].Spec.Lifetime() {
			return nil, fmt.Errorf("patch %s: %w", words[4], err)
		}
		return nil, nil
	case words[0] == "delete" && words[1] == "vmbackup":
		return nil, c.collect(words[2])
	case words[0] == "get" && len(words) == 5 && words[3] == "-o":
		return c.print(words[1], words[2], words[4])
	}
	return nil, errors.New("the guide's cluster does not know that")
}

// applyFile takes the objects of a file of the guide, or of the input.
func (c *cluster) applyFile(name string, input []byte) error {
	if name != "-" {
		input = []byte(readGuide(c.T).files[name])
	}
	for text := range strings.SplitSeq(string(input), "---\n") {
		object, _, err := c.decoder.Decode([]byte(text), nil, nil)
		if err != nil {
			return err
		}
		switch o := object.(type) {
		case *backupv1.VirtualMachineBackupTracker:
			c.tracker = o
		case *corev1.PersistentVolumeClaim:
			c.claims[o.Name] = true
		case *backupv1.VirtualMachineBackup:
			if err := c.begin(o); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%T", object)
		}
	}
	return nil
}

// evolve has the guest overwrite about a tenth of its disks, with data and with zeroes.
func (c *cluster) evolve() {
	for name, content := range c.disks {
		for offset := 0; offset < len(content); offset += exporttest.BlockBytes {
			block := content[offset:min(offset+exporttest.BlockBytes, len(content))]
			switch c.random.IntN(20) {
			case 0:
				clear(block)
			case 1:
				for i := range block {
					block[i] = byte(c.random.Uint32())
				}
			default:
				continue
			}
			c.changed[name][offset/exporttest.BlockBytes] = true
		}
	}
}

// begin fixes a point in time, and serves it.
func (c *cluster) begin(b *backupv1.VirtualMachineBackup) error {
	token := c.secrets[*b.Spec.TokenSecretRef]
	if c.backups[b.Name] != nil || !b.Spec.IsPull() || !c.claims[b.Spec.PVCName] || len(token) == 0 || c.tracker == nil {
		return fmt.Errorf("backup %s exists, is no pull backup, or misses something", b.Name)
	}
	b.UID = types.UID(fmt.Sprintf("uid-%d", len(c.order)))
	c.order = append(c.order, b.UID)
	c.taken[b.UID] = map[string][]byte{}
	b.Status.BackupType = backupv1.Full
	if b.Spec.TrackerName() == c.tracker.Name && c.tracker.Status.LatestCheckpoint != nil {
		b.Status.BackupType, b.Status.BaseCheckpoint = backupv1.Incremental, c.tracker.Status.LatestCheckpoint
	}
	volumes, config := exporttest.Volumes{}, podspec.Config{Namespace: "default", Name: b.Name, UID: b.UID, Backup: &podspec.Backup{Name: b.Name, UID: "uid"}}
	var infos []export.Info
	for _, name := range []string{"root", "data"} {
		content := bytes.Clone(c.disks[name])
		c.taken[b.UID][name] = content
		v := &exporttest.Volume{Content: content, Dirty: slices.Clone(c.changed[name]), Description: export.Info{
			Name: name, Bytes: int64(len(content)), Incremental: b.Status.BackupType == backupv1.Incremental, PointInTime: string(b.UID) + "/" + name,
		}}
		volumes[name] = v
		if len(c.order)%4 == 0 {
			volumes[name] = &fragile{Volume: v, cut: &c.cut}
		}
		infos, config.Backup.Volumes = append(infos, v.Info()), append(config.Backup.Volumes, name)
	}
	p := start(c.T, config)
	if err := os.WriteFile(p.files.Token, token, 0o600); err != nil {
		return err
	}
	for _, name := range config.Backup.Volumes {
		url := "https://" + p.addresses[podspec.HTTPSPort]
		b.Status.IncludedVolumes = append(b.Status.IncludedVolumes, backupv1.IncludedVolume{
			Name: name, VolumeName: name, Type: b.Status.BackupType, DataEndpoint: url + podspec.DataPath(name), MapEndpoint: url + podspec.MapPath(name),
		})
	}
	b.Status.Cert, b.Status.EndpointCert = string(p.authorities), string(p.authorities)
	for _, ready := range []string{backupv1.ConditionReady, backupv1.ConditionExportReady} {
		meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{Type: ready, Status: metav1.ConditionTrue, Reason: backupv1.ReasonEndpointsReady})
	}
	c.backups[b.Name], c.stopping[b.Name] = b, c.connect(p, volumes, infos, len(c.order) == 3)
	// From here on the guest writes on; what it changes since a tracker's backup is in the tracker's next one.
	if b.Spec.TrackerName() != "" {
		for name, content := range c.disks {
			c.changed[name] = make([]bool, (len(content)+exporttest.BlockBytes-1)/exporttest.BlockBytes)
		}
		c.evolve()
	}
	return nil
}

// connect is the launcher. A late one comes when clients have been told to wait.
func (c *cluster) connect(p *pod, volumes exporttest.Volumes, infos []export.Info, late bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	done := make(chan error, 1)
	go func() {
		if late {
			select {
			case <-time.After(500 * time.Millisecond):
				c.late.Add(1)
			case <-ctx.Done():
			}
		}
		done <- tunnel.Run(ctx, tunnel.Config{
			Address: p.addresses[podspec.TunnelPort], ServerName: "localhost", BackupUID: "uid",
			CA: func() (*x509.CertPool, error) {
				return p.client.Transport.(*http.Transport).TLSClientConfig.RootCAs, nil
			},
			Token: func() ([]byte, error) { return tunnel.Token([]byte("key"), "uid"), nil },
		}, volumes, infos)
	}()
	for deadline := time.Now().Add(time.Minute); !late; time.Sleep(time.Millisecond) {
		if answer, _ := p.get(http.MethodGet, podspec.ReadinessPath); answer.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			c.Error("the launcher does not come")
			break
		}
	}
	return func() {
		cancel()
		if err := <-done; err != nil {
			c.Error(err)
		}
	}
}

// collect ends a backup that was deleted while it was Ready.
func (c *cluster) collect(name string) error {
	b := c.backups[name]
	if b == nil {
		return errors.New("not found")
	}
	c.stopping[name]()
	delete(c.backups, name)
	delete(c.stopping, name)
	if b.Spec.TrackerName() == c.tracker.Name {
		c.tracker.Status.LatestCheckpoint = &backupv1.Checkpoint{Name: name, BackupName: name, BackupUID: b.UID}
	}
	return nil
}

// print writes an object as -o asks for it.
func (c *cluster) print(kind, name, form string) ([]byte, error) {
	var object any
	switch {
	case kind == "vmbackup" && c.backups[name] != nil:
		object = c.backups[name]
	case kind == "vmbackuptracker" && name == c.tracker.Name:
		object = c.tracker
	case kind == "secret" && c.secrets[name] != nil:
		object = corev1.Secret{Data: map[string][]byte{podspec.TokenKey: c.secrets[name]}}
	default:
		return nil, errors.New("not found")
	}
	text, err := json.Marshal(object)
	if err != nil || form == "json" {
		return text, err
	}
	template, ok := strings.CutPrefix(form, "jsonpath=")
	if !ok {
		return nil, errors.New("neither json nor jsonpath")
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, err
	}
	path, out := jsonpath.New("guide"), &bytes.Buffer{}
	if err := path.Parse(template); err != nil {
		return nil, err
	}
	err = path.Execute(out, value)
	return out.Bytes(), err
}

// fragile is a volume whose third reading breaks off in the middle of a chunk.
type fragile struct {
	*exporttest.Volume

	reads atomic.Int64
	cut   *atomic.Int64
}

func (f *fragile) Read(ctx context.Context, e extent.Extent, scope export.Scope, sink func(export.Chunk) error) error {
	if f.reads.Add(1) != 3 {
		return f.Volume.Read(ctx, e, scope, sink)
	}
	return f.Volume.Read(ctx, e, scope, func(c export.Chunk) error {
		c.Length /= 2
		if c.Data != nil {
			c.Data = c.Data[:c.Length]
			c.Checksum = export.Checksum(c.Data)
		}
		if err := sink(c); err != nil {
			return err
		}
		f.cut.Add(1)
		return errclass.Errorf(errclass.Transient, "broken off")
	})
}
