//go:build soak

package soak

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/controller/store/backingimage"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/test/lab"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// imageRate is how fast the images' server sends, in bytes a second: a first copy takes seconds, so that kills hit it.
const imageRate = 24 << 20

// TestImages_underKills makes images with two copies while stores, source pods and the controller that leads are killed
// at random. Each copy is read on its disk and compared, and nothing is left of an image that is deleted.
func TestImages_underKills(t *testing.T) {
	rounds, seed := envInt(t, "SOAK_IMAGES", 20), envInt(t, "SOAK_SEED", time.Now().UnixNano())
	t.Logf("SOAK_SEED=%d SOAK_IMAGES=%d", seed, rounds)
	s := &imageSoak{soak: open(t, "varve-soak-images", rand.New(rand.NewPCG(uint64(seed), 0)))}
	s.content = make([]byte, 96<<20+1_000_001)
	source := rand.New(rand.NewPCG(uint64(seed), 1))
	for at := 0; at < len(s.content); at += 4 << 20 { // 3 MiB of data, and a hole of 1 MiB
		for i := range s.content[at:min(at+3<<20, len(s.content))] {
			s.content[at+i] = byte(source.Uint32())
		}
	}
	sum := sha512.Sum512(s.content)
	s.sum = hex.EncodeToString(sum[:])
	address, stop, err := lab.ServeHTTP(t.Context(), os.Getenv("VARVE_BOX_DIR"), http.HandlerFunc(s.serve))
	s.must(err)
	t.Cleanup(stop)
	for i := range rounds {
		s.makeImage(int(i), address)
	}
	t.Logf("%d images with 2 copies each; killed %v", rounds, s.killed)
	if len(s.killed) < 3 {
		t.Error("the run proved little: give it more rounds")
	}
}

type imageSoak struct {
	*soak
	content []byte
	sum     string
}

func (s *imageSoak) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"soak"`)
	http.ServeContent(w, r, "", time.Time{}, &slowReader{Reader: bytes.NewReader(s.content), ctx: r.Context()})
}

// slowReader reads imageRate bytes a second.
type slowReader struct {
	*bytes.Reader
	ctx context.Context
}

func (r *slowReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), 256<<10)])
	timer := time.NewTimer(time.Duration(n) * time.Second / imageRate)
	defer timer.Stop()
	select {
	case <-timer.C:
		return n, err
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
}

// WriteTo would not go through Read.
func (r *slowReader) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{r})
}

// makeImage makes an image while up to three processes are killed, compares its copies, and deletes it, sometimes while
// something is killed again.
func (s *imageSoak) makeImage(round int, address string) {
	s.t.Helper()
	ctx := s.t.Context()
	image := &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: fmt.Sprintf("soak-ubuntu-22.04-%d", round)},
		Spec: longhornv1.BackingImageSpec{
			DataEngine: longhornv1.DataEngineV2, SourceType: longhornv1.SourceDownload, MinNumberOfCopies: 2,
			SourceParameters: map[string]longhornv1.ParameterValue{
				longhornv1.ParameterURL: longhornv1.ParameterValue(address + "/disk.raw"),
			},
		},
	}
	s.must(s.DeleteImage(ctx, image.Name, 3*time.Minute)) // which an earlier run may have left
	s.must(s.Create(ctx, image))
	began := time.Now()
	var hits []string
	for i := range 1 + s.rand.IntN(3) {
		hits = append(hits, s.strikeStore(storeVictims[(round+i)%len(storeVictims)],
			time.Duration(s.rand.IntN(5000))*time.Millisecond))
	}
	s.must(s.WaitImage(ctx, image, 2, 10*time.Minute))
	s.t.Logf("round %d: killed %v; 2 copies after %s, %d failures", round, hits, time.Since(began).Round(time.Second),
		image.Status.FirstCopyAttempts)
	if image.Status.Checksum != s.sum || image.Status.Size != int64(len(s.content)) {
		verdict.Errorf(s.t, "image %s has %d bytes with the SHA-512 %s", image.Name, image.Status.Size, image.Status.Checksum)
	}
	s.compareCopies(image)
	if s.rand.IntN(2) == 0 {
		s.must(s.Delete(ctx, image))
		s.strikeStore(storeVictims[s.rand.IntN(2)], time.Duration(s.rand.IntN(500))*time.Millisecond)
	}
	s.must(s.DeleteImage(ctx, image.Name, 5*time.Minute))
	s.checkNothingLeft(image.Status.UUID)
}

// storeVictims are what is killed: a store, the controller that leads, or the source of an image.
var storeVictims = []string{"source", "store", "controller"}

// strikeStore kills a victim after a while, or as soon as there is one within ten seconds.
func (s *imageSoak) strikeStore(what string, after time.Duration) string {
	timer := time.NewTimer(after)
	defer timer.Stop()
	<-timer.C
	err := wait.For(s.t.Context(), 10*time.Second, "a "+what, func(context.Context) (bool, string, error) {
		if err := s.killOne(what); err != nil {
			return notYet(err)
		}
		return true, "", nil
	})
	if err != nil {
		return fmt.Sprintf("nothing: %v", err)
	}
	s.killed[what]++
	return what
}

func (s *imageSoak) killOne(what string) error {
	ctx := s.t.Context()
	if what == "controller" {
		holder, err := s.findLeader(ctx)
		if err != nil {
			return err
		}
		return s.killLeader(ctx, holder)
	}
	label := client.MatchingLabels{"app.kubernetes.io/component": "store"}
	if what == "source" {
		label = client.MatchingLabels{layout.LabelApp: backingimage.AppSource}
	}
	var pods corev1.PodList
	if err := s.List(ctx, &pods, client.InNamespace(layout.Namespace), label); err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("there is no %s", what)
	}
	pod := &pods.Items[s.rand.IntN(len(pods.Items))]
	if err := killVarve(pod); err != nil || what == "source" {
		return err
	}
	return s.replaceKilled(ctx, pod)
}

// stores returns the directories of the nodes' disks.
func (s *imageSoak) stores() []string {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(os.Getenv("VARVE_BOX_DIR"), "volumes", "*", "store"))
	s.must(err)
	return found
}

// compareCopies reads the copies of an image on all disks.
func (s *imageSoak) compareCopies(image *longhornv1.BackingImage) {
	s.t.Helper()
	copies := 0
	for _, dir := range s.stores() {
		data, err := os.ReadFile(filepath.Join(dir, "images", image.Status.UUID, "data"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		s.must(err)
		if !bytes.Equal(data, s.content) {
			verdict.Errorf(s.t, "the copy of %s in %s has wrong bytes", image.Name, dir)
		}
		copies++
	}
	if copies != 2 {
		s.t.Errorf("%d copies of %s are on the disks", copies, image.Name)
	}
}

// checkNothingLeft waits until the cluster and the disks have nothing of an image.
func (s *imageSoak) checkNothingLeft(uuid string) {
	s.t.Helper()
	handle := names.SourceHandle(uuid)
	s.must(wait.For(s.t.Context(), 3*time.Minute, "nothing to be left", func(ctx context.Context) (bool, string, error) {
		var left []string
		for _, kind := range []client.ObjectList{
			&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{},
		} {
			if err := s.List(ctx, kind, client.MatchingLabels{backingimage.LabelImage: uuid}); err != nil {
				return false, "", err
			}
			if n := meta.LenList(kind); n > 0 {
				left = append(left, fmt.Sprintf("%d in %T", n, kind))
			}
		}
		for _, dir := range s.stores() {
			err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
				if strings.Contains(path, uuid) {
					left = append(left, path)
				}
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			})
			if err != nil {
				return false, "", err
			}
		}
		devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if err != nil {
			return false, "", err
		}
		for _, device := range devices {
			if file, err := os.ReadFile(device); err == nil && strings.Contains(string(file), handle) {
				left = append(left, device)
			}
		}
		return len(left) == 0, strings.Join(left, ", "), nil
	}))
}
