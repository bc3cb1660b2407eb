package repository

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// BenchmarkFiles_cost prints what a small file costs: docs/scale.md has the results. Run it with -benchtime 1x.
func BenchmarkFiles_cost(t *testing.B) {
	const n = 200_000
	r, config := newRepository(t)
	root := t.TempDir()
	for i := range n {
		dir := filepath.Join(root, fmt.Sprintf("d%04d", i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%07d.txt", i)), fmt.Appendf(nil, "%d of the small files, 100 bytes or so: %060d", i, i*7919), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	measure := func(what string, do func()) {
		runtime.GC()
		stop, peak := make(chan struct{}), make(chan uint64)
		go func() {
			var most uint64
			for {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most = max(most, m.HeapInuse+m.StackInuse)
				select {
				case <-stop:
					peak <- most
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		began := time.Now()
		do()
		took := time.Since(began)
		close(stop)
		t.Logf("%s: %s, %.0f files/s, heap at most %d MiB", what, took.Round(time.Millisecond), n/took.Seconds(), <-peak>>20)
	}
	var p *RestorePoint
	measure("full backup", func() { p = mustBackUpFiles(t, r, filesRequest(root, 1)) })
	time.Sleep(20 * time.Millisecond)
	measure("backup of nothing new", func() { p = mustBackUpFiles(t, r, filesRequest(root, 2)) })
	t.Logf("%+v", p.Files.Stats)
	measure("restore", func() { mustRestoreFiles(t, r, p) })
	measure("verify", func() {
		if _, err := r.Verify(t.Context(), VerifyOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	var sum int64
	for _, f := range blobFiles(t, config, "") {
		if st, err := os.Stat(f); err == nil {
			sum += st.Size()
		}
	}
	t.Logf("the repository has %d bytes, %d a file", sum, sum/int64(n))
}
