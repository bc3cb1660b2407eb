//go:build nbd_interop

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/test/verdict"
)

// secretFile makes a file of this host that no image may lead to.
func secretFile(t *testing.T) (path string, content []byte) {
	t.Helper()
	path, content = filepath.Join(t.TempDir(), "secret"), bytes.Repeat([]byte("do not read "), mib/12+1)[:mib]
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, content
}

// imageWithBacking makes a qcow2 image of 1 MiB whose header names this backing file.
func imageWithBacking(t *testing.T, name, format string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
	run(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-F", format, "-b", name, path)
	return path
}

// imageWithDataFile makes a qcow2 image of 1 MiB whose header names this data file.
func imageWithDataFile(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	path, data := filepath.Join(dir, "image.qcow2"), filepath.Join(dir, "data")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+data+",data_file_raw=on", path, "1M")
	if name != data {
		run(t, "qemu-img", "amend", "-q", "-f", "qcow2", "-o", "data_file="+strings.ReplaceAll(name, ",", ",,"), path)
	}
	return path
}

// hostileImages makes images that name a local file in each way that QEMU follows.
func hostileImages(t *testing.T, secret string) map[string]string {
	t.Helper()
	asFile := fmt.Sprintf(`json:{"driver":"raw","file":{"driver":"file","filename":%q}}`, secret)
	return map[string]string{
		"backing path":           imageWithBacking(t, secret, "raw"),
		"backing json":           imageWithBacking(t, asFile, "raw"),
		"backing with protocol":  imageWithBacking(t, "file:"+secret, "raw"),
		"backing on the network": imageWithBacking(t, "nbd://127.0.0.1:1/x", "raw"),
		"data file":              imageWithDataFile(t, secret),
		"data file json":         imageWithDataFile(t, fmt.Sprintf(`json:{"driver":"file","filename":%q}`, secret)),
		"data file nbd":          imageWithDataFile(t, "nbd://127.0.0.1:1/x"),
		"data file http":         imageWithDataFile(t, "http://127.0.0.1:1/x"),
		"data file in a chain":   imageWithBacking(t, imageWithDataFile(t, secret), "qcow2"),
	}
}

func TestHostileImage_isRefused(t *testing.T) {
	t.Parallel()
	secret, content := secretFile(t)
	for name, path := range hostileImages(t, secret) {
		source, err := OpenSource(t.Context(), path, SourceOptions{Format: QCOW2})
		if err == nil {
			got := make([]byte, mib)
			_ = source.ReadAt(t.Context(), got, 0)
			t.Errorf("%s: opened; it reads the local file: %v", name, bytes.Equal(got, content))
			_ = source.Close()
			continue
		}
		wantError(t, err, errclass.Invalid, path)
	}
}

// copyInto writes the content of one file into another, in place.
func copyInto(t *testing.T, to, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.Write(content)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// cleanImage makes a qcow2 image of 1 MiB that names no other file.
func cleanImage(t *testing.T) (path string, content []byte) {
	t.Helper()
	path, content = filepath.Join(t.TempDir(), "clean.qcow2"), make([]byte, mib)
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
	write(t, path, content, extent.Extent{Offset: 4096, Length: 4096}, 5)
	return path, content
}

// An image that was clean when it was checked is replaced, or changed in place, before QEMU opens it.
func TestHostileImage_changedAfterItsCheck(t *testing.T) {
	t.Parallel()
	secret, _ := secretFile(t)
	hostile := hostileImages(t, secret)
	// QEMU may open this one, so only the comparison with what QEMU has opened can find it.
	hostile["data file of the system"] = imageWithDataFile(t, "/usr/bin/qemu-img")
	for name, from := range hostile {
		path, content := cleanImage(t)
		image, err := openImageChain(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		replacement := filepath.Join(filepath.Dir(path), "replacement")
		copyInto(t, touched(t, replacement), from)
		if err := os.Rename(replacement, path); err != nil {
			t.Fatal(err)
		}
		wantServed(t, name+", replaced", image, content, true)

		path, _ = cleanImage(t)
		if image, err = openImageChain(path, nil); err != nil {
			t.Fatal(err)
		}
		copyInto(t, path, from)
		wantServed(t, name+", changed in place", image, make([]byte, mib), !strings.HasPrefix(name, "data file") || strings.HasSuffix(name, "chain"))
	}
}

// touched makes an empty file.
func touched(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantServed checks that a server either serves an image with this content, or refuses it.
func wantServed(t *testing.T, name string, image *imageChain, content []byte, served bool) {
	t.Helper()
	s, client, err := startServer(t.Context(), image, unix.SIGKILL, "")
	if (err == nil) != served {
		t.Errorf("%s: %v, want that it is served: %v", name, err, served)
	}
	if err != nil {
		return
	}
	got := make([]byte, len(content))
	if err := client.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, content) {
		verdict.Errorf(t, "%s: other bytes, which begin with %q (%v)", name, got[:12], err)
	}
	if err := errors.Join(client.Close(), s.shutDown()); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

func TestBackingFile_isReadIfItIsAllowed(t *testing.T) {
	t.Parallel()
	// The guest has written the header of another format into its raw disk, which stays raw.
	base, content := secretFile(t)
	hostile, _ := secretFile(t)
	header, err := os.ReadFile(imageWithBacking(t, hostile, "raw"))
	if err != nil {
		t.Fatal(err)
	}
	copy(content, header)
	if err := os.WriteFile(base, content, 0o600); err != nil {
		t.Fatal(err)
	}
	middle := imageWithBacking(t, base, "raw")
	top := imageWithBacking(t, middle, "qcow2")
	write(t, top, content, extent.Extent{Offset: 65536, Length: 4096}, 5)
	allowed := []BackingFile{{Format: QCOW2, Path: middle}, {Format: Raw, Path: base}}
	wantBytes(t, openSource(t, top, SourceOptions{Format: QCOW2, Backing: allowed}), content)
	wantBytes(t, openSource(t, base, SourceOptions{}), contentOf(t, base))

	other, _ := cleanImage(t)
	for name, wrong := range map[string][]BackingFile{
		"none":             nil,
		"not all":          allowed[:1],
		"another file":     {{Format: QCOW2, Path: other}, allowed[1]},
		"another format":   {{Format: Raw, Path: middle}},
		"too many":         {allowed[0], allowed[1], {Format: Raw, Path: other}},
		"in another order": {allowed[1], allowed[0]},
		"guessed":          {allowed[0], {Path: base + ".qcow2"}},
	} {
		if _, err := OpenSource(t.Context(), top, SourceOptions{Format: QCOW2, Backing: wrong}); !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func contentOf(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A qcow2 target that was changed while its restore was interrupted is not written.
func TestHostileImage_asATarget(t *testing.T) {
	t.Parallel()
	secret, content := secretFile(t)
	for name, hostile := range hostileImages(t, secret) {
		path := filepath.Join(t.TempDir(), "new.qcow2")
		j := newTestJournal(t, JournalOptions{Token: "a"})
		target, err := OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: j})
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
		copyInto(t, path, hostile)
		_, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Journal: newTestJournal(t, JournalOptions{Token: "a"})})
		if !errors.Is(err, errclass.Invalid) {
			t.Errorf("%s: %v, want that it is refused", name, err)
		}
		// Overwriting replaces it by a new image.
		target, err = OpenTarget(t.Context(), path, mib, TargetOptions{Format: QCOW2, Overwrite: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(target.WriteAt(t.Context(), make([]byte, mib), 0), target.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(contentOf(t, secret), content) {
		verdict.Errorf(t, "the local file was written")
	}
}

func TestConfined_hasNoSecretsAndOpensNothingElse(t *testing.T) {
	t.Setenv("VARVE_PASSWORD", "open sesame")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "open sesame")
	path, _ := cleanImage(t)
	source, ok := openSource(t, path, SourceOptions{Format: QCOW2}).(*exportSource)
	if !ok {
		t.Fatal("it is no export")
	}
	for _, file := range []string{"environ", "cmdline"} {
		if has := contentOf(t, fmt.Sprintf("/proc/%d/%s", source.server.cmd.Process.Pid, file)); bytes.Contains(has, []byte("sesame")) {
			t.Errorf("%s has a secret: %q", file, has)
		}
	}

	secret, _ := secretFile(t)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := qemuImg(t.Context(), f, "info", descriptorPath(0)); err != nil {
		t.Errorf("the image itself: %v", err)
	}
	for _, name := range []string{secret, "/etc/shadow", path + "-new", "nbd://127.0.0.1:1/x", "nbd+unix:///x?socket=/run/s"} {
		err := qemuImg(t.Context(), f, "info", name)
		if err == nil || !strings.Contains(err.Error(), "Permission denied") && !strings.Contains(err.Error(), "not permitted") && name != path+"-new" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := qemuImg(t.Context(), f, "create", "-q", "-f", "raw", path+"-new", "1M"); err == nil {
		t.Error("a new file could be made")
	}
	if _, err := os.ReadFile("/etc/shadow"); err != nil { // other threads of this process are not confined
		t.Error(err)
	}
}
