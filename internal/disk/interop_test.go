//go:build nbd_interop

package disk

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/loop"
	"github.com/varvebackup/varve/test/verdict"
	"github.com/varvebackup/varve/test/wait"
)

// run runs a program to its end. The test fails if the program is missing.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := tool(t, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: install Debian's package qemu-utils (hack/deps.sh interop)", name)
	}
	// No Pdeathsig: threads of this process end, and their servers would end with them.
	return exec.CommandContext(context.Background(), path, args...)
}

// converted returns the content of a disk as qemu-img reads it.
func converted(t *testing.T, format, path string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "converted")
	run(t, "qemu-img", "convert", "-f", format, "-O", "raw", path, out)
	content, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// write changes a qcow2 image as a guest would, and changes content accordingly.
func write(t *testing.T, image string, content []byte, e extent.Extent, value byte) {
	t.Helper()
	copy(content[e.Offset:e.End()], bytes.Repeat([]byte{value}, int(e.Length)))
	run(t, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -P %d %d %d", value, e.Offset, e.Length), image)
}

// chain makes a qcow2 image on top of another one. The image has bitmaps b0 and b1, its backing file has base.
func chain(t *testing.T) (path string, content []byte) {
	t.Helper()
	raw, content := sparseFile(t, 8*mib, extent.Extent{Length: 64 * kib}, extent.Extent{Offset: 3 * mib, Length: 200 * kib})
	base, top := filepath.Join(filepath.Dir(raw), "base.qcow2"), filepath.Join(filepath.Dir(raw), "a: odd, name.qcow2")
	run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, base)
	run(t, "qemu-img", "bitmap", "--add", base, "base")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", base, "-F", "qcow2", top)
	run(t, "qemu-img", "bitmap", "--add", "-g", "64K", top, "b1")
	write(t, top, content, extent.Extent{Offset: 3*mib + 64*kib, Length: 4 * kib}, 7)
	run(t, "qemu-img", "bitmap", "--add", "-g", "64K", top, "b0")
	write(t, top, content, extent.Extent{Offset: 6 * mib, Length: 70 * kib}, 9)
	return top, content
}

// chainOptions returns the options to read the image that chain makes.
func chainOptions(path, bitmap string) SourceOptions {
	return SourceOptions{Format: QCOW2, Bitmap: bitmap, Backing: []BackingFile{{Format: QCOW2, Path: filepath.Join(filepath.Dir(path), "base.qcow2")}}}
}

func TestQCOW2_isReadWithItsBitmap(t *testing.T) {
	t.Parallel()
	path, content := chain(t)
	for bitmap, want := range map[string]string{"": "", "b0": "6291456+131072", "b1": "3211264+65536 6291456+131072"} {
		s := openSource(t, path, chainOptions(path, bitmap))
		wantBytes(t, s, content)
		wantBytes(t, s, converted(t, "qcow2", path))
		data, err := s.Data(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("0+65536 3145728+262144 6291456+131072", listing(*data)); diff != "" {
			verdict.Errorf(t, "%s", diff)
		}
		changes, err := s.Changes(t.Context())
		if err != nil || (changes == nil) != (bitmap == "") {
			t.Fatalf("changes %v, %v", changes, err)
		}
		if changes != nil && listing(*changes) != want {
			verdict.Errorf(t, "changes in %s: %s, want %s", bitmap, listing(*changes), want)
		}
		if !strings.HasPrefix(s.Identity(), "file:") {
			t.Errorf("identity %s", s.Identity())
		}
		qcow, ok := s.(*exportSource)
		if !ok || qcow.client.Connections() != connections {
			t.Errorf("%d connections", qcow.client.Connections())
		}
		socket := qcow.server.socket
		if _, err := os.Stat(filepath.Dir(socket)); socket == "" || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there while the connections stand: %v", socket, err)
		}
	}
}

func TestBitmap_refused(t *testing.T) {
	t.Parallel()
	path, _ := chain(t)
	for bitmap, texts := range map[string][]string{
		"b9":   {path, "b9", "b0", "b1"},
		"base": {path, "base"}, // the backing file's: it has nothing of what is in the image
	} {
		_, err := OpenSource(t.Context(), path, chainOptions(path, bitmap))
		wantError(t, err, ErrNotFound, texts...)
	}
	// A user that dies leaves the bitmap marked as in use.
	if err := tool(t, "qemu-io", "-f", "qcow2", "-c", "write 0 64k", "-c", "abort", path).Run(); err == nil {
		t.Fatal("qemu-io did not die")
	}
	_, err := OpenSource(t.Context(), path, chainOptions(path, "b0"))
	wantError(t, err, errclass.Invalid, "b0", "read the whole disk")
}

func TestRaw_isReadAsQEMUDoes(t *testing.T) {
	t.Parallel()
	path, _ := sparseFile(t, 5*mib+512, extent.Extent{Offset: 4096, Length: 100}, extent.Extent{Offset: 4 * mib, Length: mib + 512})
	wantBytes(t, openSource(t, path, SourceOptions{}), converted(t, "raw", path))
}

func TestQEMU_isQuotedInErrors(t *testing.T) {
	t.Parallel()
	raw, _ := sparseFile(t, mib, extent.Extent{Length: mib})
	_, err := OpenSource(t.Context(), raw, SourceOptions{Format: QCOW2})
	wantError(t, err, errclass.Invalid, raw, "not in qcow2 format")
	path, _ := chain(t)
	cut, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cut.WriteAt(bytes.Repeat([]byte{0xff}, 8), 40) // where its first table is
	if err := errors.Join(err, cut.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = OpenSource(t.Context(), path, chainOptions(path, ""))
	wantError(t, err, err, path, serverProgram, "exit status 1", "offset")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenSource(ctx, path, chainOptions(path, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
}

// serveWith serves an image, writable, with a separate qemu-nbd until the test ends. It returns the URI.
func serveWith(t *testing.T, format, path string, options ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := tool(t, "qemu-nbd", append(options, "--persistent", "--socket="+socket, "--format="+format, path)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(unix.SIGTERM)
		cmd.Wait()
	})
	uri := "nbd+unix:///?socket=" + socket
	wait.Succeeds(t, time.Minute, "the server to listen", func() error {
		nc, err := net.Dial("unix", socket)
		if err == nil {
			nc.Close()
		}
		return err
	})
	// It listens before it opens the image.
	openSource(t, uri, SourceOptions{})
	return uri
}

func TestExport_fullServerGetsOneConnection(t *testing.T) {
	t.Parallel()
	path, content := sparseFile(t, mib, extent.Extent{Length: mib})
	uri := serveWith(t, "raw", path, "--shared=3", "--read-only") // serveWith uses one of them
	s := openSource(t, uri, SourceOptions{})
	wantBytes(t, s, content)
}

func TestTarget_diskOfARunningGuestIsRefused(t *testing.T) {
	t.Parallel()
	path, content := sparseFile(t, mib, extent.Extent{Length: mib})
	serveWith(t, "raw", path)
	_, err := OpenTarget(t.Context(), path, mib, TargetOptions{Overwrite: true})
	wantError(t, err, errclass.Conflict, path, "virtual machine")
	wantBytes(t, openSource(t, path, SourceOptions{IgnoreLocks: true}), content)

	image, _ := chain(t)
	serveWith(t, "qcow2", image)
	before, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), image, mib, TargetOptions{Format: QCOW2, Overwrite: true})
	wantError(t, err, errclass.Conflict, image, "virtual machine")
	if after, err := os.ReadFile(image); err != nil || !bytes.Equal(before, after) {
		verdict.Errorf(t, "the image has changed (%v)", err)
	}

	// No guest starts from a disk that is being restored.
	path = filepath.Join(t.TempDir(), "new.img")
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := tool(t, "qemu-io", "-f", "raw", "-c", "write 0 512", path).CombinedOutput(); err == nil {
		t.Errorf("QEMU writes it meanwhile: %s", out)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTarget_deviceOfARunningGuestIsRefused(t *testing.T) {
	t.Parallel()
	file, content := sparseFile(t, mib, extent.Extent{Length: mib})
	device := loop.Device(t, file)
	serveWith(t, "raw", device)
	_, err := OpenTarget(t.Context(), device, mib, TargetOptions{Overwrite: true})
	wantError(t, err, errclass.Conflict, device, "virtual machine")
	wantBytes(t, openSource(t, device, SourceOptions{IgnoreLocks: true}), content)
}

func TestQCOW2_isWritten(t *testing.T) {
	t.Parallel()
	const size = 9*mib + 700 // not a whole sector
	path := filepath.Join(t.TempDir(), "new.qcow2")
	content := make([]byte, size)
	target, err := OpenTarget(t.Context(), path, size, TargetOptions{Format: QCOW2})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		at := r.Int64N(size)
		e := extent.Extent{Offset: at, Length: min(1+r.Int64N(300*kib), size-at)}
		if i%3 == 0 {
			clear(content[at:e.End()])
			err = target.Zero(t.Context(), e)
		} else {
			copy(content[at:], noise(int(e.Length), uint64(i)))
			err = target.WriteAt(t.Context(), content[at:e.End():e.End()], at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(target.Sync(t.Context()), target.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "check", "-f", "qcow2", path)
	if got := converted(t, "qcow2", path); !bytes.Equal(got[:size], content) || len(got)-size >= 512 {
		verdict.Errorf(t, "%d bytes, want %d, or others", len(got), size)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// Another disk replaces it, and nothing of the old one shows through.
	_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2})
	wantError(t, err, errclass.Conflict, path)
	if target, err = OpenTarget(t.Context(), path, 1<<40, TargetOptions{Format: QCOW2, Overwrite: true}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(target.Zero(t.Context(), extent.Extent{Length: 1 << 40}), target.Close()); err != nil {
		t.Fatal(err)
	}
	if got := used(t, path); got > mib {
		t.Errorf("%d bytes for a disk of zeroes", got)
	}
	s := openSource(t, path, SourceOptions{Format: QCOW2})
	if data, err := s.Data(t.Context()); err != nil || !data.Empty() || s.Bytes() != 1<<40 {
		verdict.Errorf(t, "%d bytes, data %v, %v", s.Bytes(), data, err)
	}
}

func TestQCOW2_halfOfARestoreIsNoSource(t *testing.T) {
	t.Parallel()
	halfOfARestore(t, SourceOptions{Format: QCOW2})
}

func TestQCOW2_existingTargetIsRefused(t *testing.T) {
	t.Parallel()
	path, content := sparseFile(t, 2*mib, extent.Extent{Offset: mib, Length: 1})
	_, err := OpenTarget(t.Context(), path, 2*mib, TargetOptions{Format: QCOW2})
	wantError(t, err, errclass.Conflict, "overwrite this one")
	wantBytes(t, openSource(t, path, SourceOptions{}), content)
}

// TestQCOW2_restoreResumesAfterItsServerWasKilled checks that the image is repaired, and gets what is missing.
func TestQCOW2_restoreResumesAfterItsServerWasKilled(t *testing.T) {
	t.Parallel()
	path, content := filepath.Join(t.TempDir(), "new.qcow2"), noise(3*mib, 5)
	j := newTestJournal(t, JournalOptions{Token: "a"})
	target, err := OpenTarget(t.Context(), path, 3*mib, TargetOptions{Format: QCOW2, Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 20)
	if err := j.Save(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 5) // the journal knows nothing of these
	qcow, ok := target.(*exportTarget)
	if !ok {
		t.Fatalf("%T", target)
	}
	if err := qcow.server.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-qcow.server.ended
	for err == nil { // until the connection notices
		err = target.WriteAt(t.Context(), content[:1], 0)
	}
	wantError(t, err, err, path, "signal: killed")
	if err := j.Save(t.Context(), target); err == nil {
		t.Error("a checkpoint without the server")
	}
	if err := target.Close(); err == nil {
		t.Error("the end of the server is no error of Close")
	}

	j = newTestJournal(t, JournalOptions{Token: "a"})
	if target, err = OpenTarget(t.Context(), path, 3*mib, TargetOptions{Format: QCOW2, Journal: j}); err != nil {
		t.Fatal(err)
	}
	if got := restore(t, target, j, content, 100); got != 28 {
		t.Errorf("%d regions were written, want 28", got)
	}
	if err := errors.Join(target.Sync(t.Context()), target.Close(), j.Remove()); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "check", "-f", "qcow2", path)
	if !bytes.Equal(converted(t, "qcow2", path), content) {
		verdict.Errorf(t, "other bytes")
	}
}

// TestServer_outlivesTheThreadThatAskedForIt: the kernel sends a child its signal when the thread that started it ends.
func TestServer_outlivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	path, content := chain(t)
	var s Source
	var err error
	thread := onAThread(func() { s, err = OpenSource(t.Context(), path, chainOptions(path, "")) })
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, time.Minute, "the thread to end", func() bool { return unix.Tgkill(os.Getpid(), thread, 0) != nil })
	wantBytes(t, s, content)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// onAThread calls f on a thread that ends afterwards. The first thread of a process does not end.
func onAThread(f func()) (thread int) {
	done := make(chan int)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		thread := unix.Gettid()
		if thread == os.Getpid() {
			thread = onAThread(f)
		} else {
			f()
		}
		done <- thread
	}()
	return <-done
}

func TestServer_longNamesOfTemporaryDirectories(t *testing.T) {
	path, _ := chain(t)
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	_, err := OpenSource(t.Context(), path, chainOptions(path, ""))
	wantError(t, err, errclass.Invalid, "TMPDIR", path)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left are %v (%v)", left, err)
	}
}

func TestQCOW2_restoreToADamagedImageDoesNotResume(t *testing.T) {
	t.Parallel()
	path, content := filepath.Join(t.TempDir(), "new.qcow2"), noise(mib, 5)
	j := newTestJournal(t, JournalOptions{Token: "a", Every: time.Nanosecond})
	target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	restore(t, target, j, content, 5)
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{0, 0}, 2*64*kib+2*5) // the reference count of cluster 5, in the first refcount block
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: newTestJournal(t, JournalOptions{Token: "a"})})
	wantError(t, err, errclass.Conflict, path, "start anew")
}

// holdEnv is the environment variable with the disk that a child of TestServer_diesWithItsOwner opens.
const holdEnv = "VARVE_TEST_HOLD"

// TestServer_diesWithItsOwner kills a process that has a source and a target open.
func TestServer_diesWithItsOwner(t *testing.T) {
	if path := os.Getenv(holdEnv); path != "" {
		hold(t, path)
		return
	}
	t.Parallel()
	path, _ := chain(t)
	made := filepath.Join(t.TempDir(), "new.qcow2")
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServer_diesWithItsOwner$")
	child.Env = append(os.Environ(), holdEnv+"="+path, holdEnv+"_TARGET="+made)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "serves: "); ok {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	child.Wait()
	if len(pids) != 2 {
		t.Fatalf("the child says that %v serve", pids)
	}
	for _, pid := range pids {
		wait.Until(t, time.Minute, fmt.Sprintf("server %d to end", pid), func() bool { return !isQEMU(pid) })
	}
	run(t, "qemu-img", "check", "-f", "qcow2", made) // it was closed in order
	if got := converted(t, "qcow2", made); got[0] != 1 {
		verdict.Errorf(t, "what was written is lost: %d", got[0])
	}
}

// isQEMU reports whether the process is a running server of this package. A process that has ended and that nobody has
// waited for has no command line.
func isQEMU(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte(serverProgram))
}

// hold opens disks and waits to be killed.
func hold(t *testing.T, path string) {
	t.Helper()
	s, err := OpenSource(t.Context(), path, chainOptions(path, ""))
	if err != nil {
		t.Fatal(err)
	}
	target, err := OpenTarget(t.Context(), os.Getenv(holdEnv+"_TARGET"), mib, TargetOptions{Format: QCOW2})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.WriteAt(t.Context(), []byte{1}, 0); err != nil {
		t.Fatal(err)
	}
	source, isSource := s.(*exportSource)
	qcow, isTarget := target.(*exportTarget)
	if !isSource || !isTarget {
		t.Fatalf("%T, %T", s, target)
	}
	fmt.Printf("serves: %d\nserves: %d\n", source.server.cmd.Process.Pid, qcow.server.cmd.Process.Pid)
	select {}
}

// A bitmap that does not record writes does not have what changed, even if it looks intact.
func TestBitmap_oneThatDoesNotRecordIsRefused(t *testing.T) {
	t.Parallel()
	path, content := chain(t)
	run(t, "qemu-img", "bitmap", "--disable", path, "b0")
	write(t, path, content, extent.Extent{Offset: mib, Length: 64 * kib}, 3)
	run(t, "qemu-img", "bitmap", "--enable", path, "b1")
	_, err := OpenSource(t.Context(), path, chainOptions(path, "b0"))
	wantError(t, err, errclass.Invalid, "b0", "disabled", "read the whole disk")
	s := openSource(t, path, chainOptions(path, "b1"))
	wantBytes(t, s, content)
}

func TestBitmap_areAddedListedAndRemoved(t *testing.T) {
	t.Parallel()
	path, _ := chain(t)
	if err := AddBitmap(t.Context(), path, "new"); err != nil {
		t.Fatal(err)
	}
	if err := AddBitmap(t.Context(), path, "new"); err == nil {
		t.Error("a bitmap was added twice")
	}
	if err := RemoveBitmap(t.Context(), path, "b1"); err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "bitmap", "--disable", path, "b0")
	all, err := Bitmaps(t.Context(), path)
	want := []Bitmap{{Name: "b0", Saved: true}, {Name: "new", Saved: true, Recording: true}}
	if diff := cmp.Diff(want, all); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}
