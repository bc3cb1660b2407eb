package repository

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/extent"
)

// The child of the crash test reads these.
const (
	crashConfig = "VARVE_TEST_CRASH_CONFIG"
	crashSeed   = "VARVE_TEST_CRASH_SEED"
)

// crashDisk is a disk whose content follows from seed: that of seed 0 with as many changes.
func crashDisk(seed int) *memory {
	d := &memory{data: make([]byte, 66*mib)}
	random := rand.New(rand.NewPCG(7, 7))
	d.write(random, extent.Extent{Offset: 3 * mib, Length: 12 * mib}, false)
	d.write(random, extent.Extent{Offset: 64 * mib, Length: 2 * mib}, false)
	d.changed = extent.Set{}
	for range seed {
		at := random.Int64N(60 * mib)
		d.write(random, extent.Extent{Offset: at, Length: 1 + random.Int64N(2*mib)}, random.IntN(4) == 0)
	}
	return d
}

// slowly reads a disk so that there is time to be killed.
type slowly struct{ *memory }

func (s slowly) ReadAt(ctx context.Context, p []byte, offset int64) error {
	time.Sleep(time.Millisecond)
	return s.memory.ReadAt(ctx, p, offset)
}

// crashChild backs the disk of a seed up, and is killed meanwhile.
func crashChild() int {
	seed, err := strconv.Atoi(os.Getenv(crashSeed))
	if err != nil {
		return 2
	}
	ctx := context.Background()
	r, err := Open(ctx, os.Getenv(crashConfig), testPassword)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	if err := crashBackup(ctx, r, seed, true); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func crashBackup(ctx context.Context, r *Repository, seed int, slow bool) error {
	disk := crashDisk(seed)
	source := DiskSource{Name: "root", Bytes: int64(len(disk.data)), Reader: disk, Identity: "a", Change: strconv.Itoa(seed)}
	if slow {
		source.Reader = slowly{disk}
	}
	points, err := r.List(ctx, &testSource)
	if err != nil {
		return err
	}
	if len(points) > 0 {
		since, err := strconv.Atoi(points[len(points)-1].Disks[0].Change)
		if err != nil {
			return err
		}
		source.Changes = &Changes{Since: strconv.Itoa(since), Set: difference(crashDisk(since).data, disk.data)}
	}
	_, err = r.Backup(ctx, Request{
		Source: testSource, Time: time.Unix(int64(seed), 0), Disks: []DiskSource{source}, Workers: 2, CheckpointEvery: 20 * time.Millisecond,
	})
	return err
}

// difference is where a and b differ, in pieces of 4 KiB.
func difference(a, b []byte) extent.Set {
	var out extent.Set
	for at := 0; at < len(a); at += 4 * kib {
		if end := min(at+4*kib, len(a)); !bytes.Equal(a[at:end], b[at:end]) {
			out.Append(extent.Extent{Offset: int64(at), Length: int64(end - at)})
		}
	}
	return out
}

// Killed at any moment, a backup leaves a complete restore point or none, and the next one works.
func TestAKilledBackupLeavesAllOrNothing(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	moments := uint64(time.Now().UnixNano())
	t.Logf("seed of the moments: %d", moments)
	random := rand.New(rand.NewPCG(moments, 0))
	complete := 0
	for seed := range 8 {
		killed(t, config, seed, time.Duration(random.IntN(1500))*time.Millisecond)
		if err := r.rep.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		points, err := r.List(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		complete = len(points)
		for _, p := range points {
			n, err := strconv.Atoi(p.Disks[0].Change)
			if err != nil {
				t.Fatal(err)
			}
			same(t, r, p, crashDisk(n).data)
		}
	}
	t.Logf("%d of 8 backups were done before they were killed", complete)
	if err := crashBackup(t.Context(), r, 9, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Maintain(t.Context(), MaintenanceOptions{Mode: FullMaintenance, Exclusive: true}); err != nil {
		t.Fatal(err)
	}
	points, err := r.List(t.Context(), nil)
	if err != nil || len(points) != complete+1 {
		t.Fatalf("%d restore points, %v", len(points), err)
	}
	same(t, r, points[complete], crashDisk(9).data)
}

// killed runs a child and kills it so long after it has opened the repository.
func killed(t *testing.T, config string, seed int, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashConfig+"="+config, crashSeed+"="+strconv.Itoa(seed))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	opened := make([]byte, 256)
	n, err := out.Read(opened)
	if err != nil || string(opened[:n]) != "open\n" {
		t.Fatalf("the child: %q, %v", opened[:n], err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed, or had ended
}

// Backups of two disks, a reader, maintenance and deletion go on at the same time, each with a connection of its own.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	_, config := newRepository(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wait sync.WaitGroup
	fail := func(err error) {
		if err != nil && ctx.Err() == nil {
			t.Error(err)
			cancel()
		}
	}
	held := sync.Map{}
	for i := range 2 {
		r := open(t, config)
		wait.Go(func() { fail(backUpRepeatedly(ctx, r, i, 6, &held)) })
	}
	reader, cleaner := open(t, config), open(t, config)
	done := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() { fail(readRepeatedly(ctx, reader, done, &held)) })
	background.Go(func() { fail(cleanRepeatedly(ctx, cleaner, done, &held)) })
	wait.Wait()
	close(done)
	background.Wait()
	fresh := open(t, config)
	points, err := fresh.List(t.Context(), nil)
	if err != nil || len(points) == 0 {
		t.Fatalf("%d restore points: %v", len(points), err)
	}
	for _, p := range points {
		want, _ := held.Load(p.ID)
		same(t, fresh, p, want.([]byte))
	}
}

func backUpRepeatedly(ctx context.Context, r *Repository, disk, times int, held *sync.Map) error {
	random := rand.New(rand.NewPCG(uint64(disk), 5))
	d := &memory{data: make([]byte, 8*mib)}
	source := testSource
	source.Path = fmt.Sprintf("/vm-%d", disk)
	for i := range times {
		d.write(random, extent.Extent{Offset: random.Int64N(7 * mib), Length: mib}, false)
		p, err := r.Backup(ctx, Request{Source: source, Time: time.Unix(int64(i), 0), Disks: []DiskSource{d.source(i > 0)}})
		if err != nil {
			return err
		}
		held.Store(p.ID, bytes.Clone(d.data))
	}
	return nil
}

func readRepeatedly(ctx context.Context, r *Repository, done <-chan struct{}, held *sync.Map) error {
	return repeatedly(ctx, r, done, func(points []*RestorePoint) error {
		p := points[len(points)/2]
		want, known := held.Load(p.ID)
		image, err := r.Image(ctx, p.Disks[0])
		if err != nil {
			return err
		}
		got := make([]byte, p.Disks[0].Bytes)
		if err := image.ReadAt(ctx, got, 0); err != nil {
			return err
		}
		if known && !bytes.Equal(got, want.([]byte)) {
			return fmt.Errorf("%w: restore point %s differs", ErrCorrupt, p.ID)
		}
		return nil
	})
}

func cleanRepeatedly(ctx context.Context, r *Repository, done <-chan struct{}, held *sync.Map) error {
	return repeatedly(ctx, r, done, func(points []*RestorePoint) error {
		if len(points) > 3 {
			if err := r.Delete(ctx, points[0].ID); err != nil {
				return err
			}
			held.Delete(points[0].ID)
		}
		return r.Maintain(ctx, MaintenanceOptions{Mode: FullMaintenance})
	})
}

func repeatedly(ctx context.Context, r *Repository, done <-chan struct{}, do func([]*RestorePoint) error) error {
	for ctx.Err() == nil {
		select {
		case <-done:
			return nil
		default:
		}
		if err := r.rep.Refresh(ctx); err != nil {
			return err
		}
		points, err := r.List(ctx, nil)
		if err != nil {
			return err
		}
		if len(points) == 0 {
			continue
		}
		if err := do(points); err != nil {
			return err
		}
	}
	return nil
}
