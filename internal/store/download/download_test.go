package download

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/disk"
	"github.com/varvebackup/varve/internal/store/disk/disktest"
)

const mib = disk.PieceBytes

// newContent returns five MiB, the second and the fourth of which are zero, and a bit more.
func newContent() []byte {
	data := make([]byte, 5*mib+1000)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	clear(data[mib : 2*mib])
	clear(data[3*mib : 4*mib])
	clear(data[4*mib+8192 : 4*mib+65536])
	return data
}

// describeImage returns what the cluster says of an image, and the hashes of its pieces.
func describeImage(data []byte) (Image, []disk.PieceHash) {
	hashes := disktest.HashPieces(data)
	return Image{
		Bytes: int64(len(data)), Checksum: disktest.Checksum(data), PiecesChecksum: disk.SumPieces(hashes),
	}, hashes
}

// sentFrom returns what a store sends from a piece on.
func sentFrom(data []byte, piece int) []byte {
	var sent []byte
	for p := range slices.Chunk(data[piece*mib:], mib) {
		if bytes.Count(p, []byte{0}) < len(p) {
			sent = append(sent, p...)
		}
	}
	return sent
}

// openTransfer begins to bring an image to a file.
func openTransfer(t *testing.T, path string, image Image, force bool) (*Transfer, *File) {
	t.Helper()
	file, err := OpenFile(path, image.Checksum, force)
	if err != nil {
		t.Fatal(err)
	}
	transfer, err := NewTransfer(image, file)
	if err != nil {
		t.Fatal(err)
	}
	return transfer, file
}

func mustSucceed(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// receiveRest receives all that is missing, of the image whose content is given.
func receiveRest(t *testing.T, transfer *Transfer, data []byte) {
	t.Helper()
	from, missing, err := transfer.Next(t.Context())
	mustSucceed(t, err)
	if missing {
		mustSucceed(t, transfer.Receive(t.Context(), bytes.NewReader(sentFrom(data, from))))
	}
	if got := transfer.Done(); got != int64(len(data)) {
		t.Errorf("%d bytes of %d are there", got, len(data))
	}
}

func wantFile(t *testing.T, path string, data []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes that may differ: %v", len(got), err)
	}
	if parts, _ := filepath.Glob(path + ".*"); len(parts) > 0 {
		t.Errorf("%v were left", parts)
	}
}

func TestTransfer_isSparse(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	path := filepath.Join(t.TempDir(), "golden.raw")
	transfer, file := openTransfer(t, path, image, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	receiveRest(t, transfer, data)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is there before it was verified: %v", err)
	}
	mustSucceed(t, transfer.Finish(), file.Close())
	wantFile(t, path, data)
	var stat unix.Stat_t
	mustSucceed(t, unix.Stat(path, &stat))
	if got := stat.Blocks * 512; got > int64(len(data))-2*mib {
		t.Errorf("the file takes %d bytes", got)
	}
}

// An image that is zero everywhere is known by its hashes alone.
func TestTransfer_ofZeroes(t *testing.T) {
	t.Parallel()
	data := make([]byte, 3*mib+5)
	image, hashes := describeImage(data)
	path := filepath.Join(t.TempDir(), "golden.raw")
	transfer, file := openTransfer(t, path, image, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	if _, missing, err := transfer.Next(t.Context()); missing || err != nil {
		t.Errorf("missing %t: %v", missing, err)
	}
	mustSucceed(t, transfer.Finish(), file.Close())
	wantFile(t, path, data)
}

// cut is how many bytes of the data an earlier run has received.
func TestTransfer_goesOn(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	for name, c := range map[string]struct {
		cut   int
		spoil func(part string) error
		from  int // where the next run goes on
	}{
		"at once":           {0, nil, 0},
		"in a piece":        {mib + 100, nil, 2},
		"in the last piece": {3*mib + 10, nil, 5},
		"after a crash":     {3 * mib, func(part string) error { return os.Truncate(part, 2*mib+5) }, 2},
		"after rot": {3 * mib, func(part string) error {
			f, err := os.OpenFile(part, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt([]byte("other"), 77)
				err = errors.Join(err, f.Close())
			}
			return err
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "golden.raw")
			transfer, file := openTransfer(t, path, image, false)
			mustSucceed(t, transfer.Begin(t.Context(), hashes))
			err := transfer.Receive(t.Context(), bytes.NewReader(sentFrom(data, 0)[:c.cut]))
			if !errors.Is(err, errclass.Transient) {
				t.Fatal(err)
			}
			mustSucceed(t, file.Close())
			if c.spoil != nil {
				mustSucceed(t, c.spoil(PartPath(path, image.Checksum)))
			}
			transfer, file = openTransfer(t, path, image, false)
			mustSucceed(t, transfer.Begin(t.Context(), hashes))
			from, _, err := transfer.Next(t.Context())
			if from != c.from || err != nil {
				t.Errorf("it goes on at piece %d, not %d: %v", from, c.from, err)
			}
			receiveRest(t, transfer, data)
			mustSucceed(t, transfer.Finish(), file.Close())
			wantFile(t, path, data)
		})
	}
}

// A look at what is there that fails is made again from the beginning.
func TestTransfer_beginsAgain(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	path := filepath.Join(t.TempDir(), "golden.raw")
	mustSucceed(t, os.WriteFile(PartPath(path, image.Checksum), data[:4*mib+5], 0o600))
	transfer, file := openTransfer(t, path, image, false)
	ctx, cancel := context.WithCancel(t.Context())
	transfer.to = &cancelling{File: file, cancel: cancel}
	if err := transfer.Begin(ctx, hashes); !errors.Is(err, context.Canceled) || transfer.Done() == 0 {
		t.Fatalf("%d bytes, %v", transfer.Done(), err)
	}
	transfer.to = file
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	receiveRest(t, transfer, data)
	mustSucceed(t, transfer.Finish(), file.Close())
	wantFile(t, path, data)
}

// cancelling is a file whose user ends the command when the second piece was read.
type cancelling struct {
	*File
	cancel func()
}

func (c *cancelling) Load(p []byte, offset int64) (bool, error) {
	if offset > 0 {
		c.cancel()
	}
	return c.File.Load(p, offset)
}

// The part of another image stays what it is.
func TestOpenFile_ofAnotherImage(t *testing.T) {
	t.Parallel()
	data := newContent()
	first, hashes := describeImage(data)
	path := filepath.Join(t.TempDir(), "golden.raw")
	transfer, file := openTransfer(t, path, first, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	_ = transfer.Receive(t.Context(), bytes.NewReader(sentFrom(data, 0)[:mib+1]))
	mustSucceed(t, file.Close())
	data = bytes.Clone(data)
	data[0]++
	second, hashes := describeImage(data)
	transfer, file = openTransfer(t, path, second, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	if transfer.Done() != 0 {
		t.Errorf("%d bytes of another image were kept", transfer.Done())
	}
	receiveRest(t, transfer, data)
	mustSucceed(t, transfer.Finish(), file.Close())
	if _, err := os.Stat(PartPath(path, first.Checksum)); err != nil {
		t.Error(err)
	}
}

func TestTransfer_refusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	wrong := slices.Clone(hashes)
	wrong[4][0]++
	for name, c := range map[string]struct {
		hashes []disk.PieceHash
		words  string
	}{"fewer": {hashes[:5], "5 MiB"}, "none": {nil, "0 MiB"}, "of another image": {wrong, "are those of"}} {
		transfer, file := openTransfer(t, filepath.Join(t.TempDir(), "golden.raw"), image, false)
		err := transfer.Begin(t.Context(), c.hashes)
		if !errors.Is(err, errclass.Corrupt) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		mustSucceed(t, file.Close())
	}
	// A piece that is wrong is not written, and the next copy sends it.
	path := filepath.Join(t.TempDir(), "golden.raw")
	transfer, file := openTransfer(t, path, image, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	sent := sentFrom(data, 0)
	sent[mib+9]++
	if err := transfer.Receive(t.Context(), bytes.NewReader(sent)); !errors.Is(err, errclass.Corrupt) {
		t.Error(err)
	}
	if transfer.Done() != 2*mib {
		t.Errorf("%d bytes are there", transfer.Done())
	}
	receiveRest(t, transfer, data)
	mustSucceed(t, transfer.Finish(), file.Close())
	wantFile(t, path, data)

	// Hashes that nobody vouches for may be those of something else.
	image.PiecesChecksum, image.Checksum = "", strings.Repeat("0", 128)
	path = filepath.Join(t.TempDir(), "golden.raw")
	transfer, file = openTransfer(t, path, image, false)
	mustSucceed(t, transfer.Begin(t.Context(), hashes))
	receiveRest(t, transfer, data)
	if err := transfer.Finish(); !errors.Is(err, errclass.Corrupt) {
		t.Error(err)
	}
	mustSucceed(t, file.Close())
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("%v were left", left)
	}
	if _, err := NewTransfer(Image{Bytes: 1 << 60, Checksum: image.Checksum}, file); !errors.Is(err, errclass.Invalid) {
		t.Error(err)
	}
}

func TestOpenFile_refuses(t *testing.T) {
	t.Parallel()
	image, _ := describeImage(newContent())
	for name, c := range map[string]struct {
		prepare func(path string) error
		force   bool
		class   error // nil: it is opened
		words   string
	}{
		"a file":            {func(p string) error { return os.WriteFile(p, nil, 0o600) }, false, ErrExists, "exists already"},
		"a file to replace": {func(p string) error { return os.WriteFile(p, nil, 0o600) }, true, nil, ""},
		"a directory":       {func(p string) error { return os.Mkdir(p, 0o700) }, true, errclass.Invalid, "not a regular file"},
		"a link":            {func(p string) error { return os.Symlink("/dev/null", p) }, true, errclass.Invalid, "not a regular file"},
		"a part that is a link": {func(p string) error {
			return os.Symlink(p+".other", PartPath(p, image.Checksum))
		}, false, unix.ELOOP, "symbolic links"},
		"a part that is a pipe": {func(p string) error {
			return unix.Mkfifo(PartPath(p, image.Checksum), 0o600)
		}, false, errclass.Invalid, "not a regular file"},
		"no directory": {func(p string) error { return os.Remove(filepath.Dir(p)) }, false, os.ErrNotExist, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "d", "golden.raw")
			mustSucceed(t, os.Mkdir(filepath.Dir(path), 0o700), c.prepare(path))
			file, err := OpenFile(path, image.Checksum, c.force)
			if c.class == nil {
				mustSucceed(t, err, file.Close())
				return
			}
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.words) || strings.Count(err.Error(), "golden.raw") != 1 {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Two commands do not write one part, and a part that nothing is in does not stay.
func TestOpenFile_once(t *testing.T) {
	t.Parallel()
	image, _ := describeImage(newContent())
	path := filepath.Join(t.TempDir(), "golden.raw")
	_, file := openTransfer(t, path, image, false)
	if _, err := OpenFile(path, image.Checksum, false); !errors.Is(err, errclass.Conflict) ||
		!strings.Contains(err.Error(), "another command") {
		t.Errorf("error %v", err)
	}
	mustSucceed(t, file.Close())
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("%v were left", left)
	}
}

// A file that appeared meanwhile is somebody's.
func TestFile_finishesBesideAnother(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	for _, force := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "golden.raw")
		transfer, file := openTransfer(t, path, image, force)
		mustSucceed(t, transfer.Begin(t.Context(), hashes))
		receiveRest(t, transfer, data)
		mustSucceed(t, os.WriteFile(path, []byte("mine"), 0o600))
		err := transfer.Finish()
		mustSucceed(t, file.Close())
		if force {
			mustSucceed(t, err)
			wantFile(t, path, data)
			continue
		}
		if got, _ := os.ReadFile(path); !errors.Is(err, ErrExists) || string(got) != "mine" {
			t.Errorf("the file has %q: %v", got, err)
		}
	}
}

func TestFile_saysThatThereIsNoSpace(t *testing.T) {
	t.Parallel()
	err := newLocalError("f", &os.PathError{Op: "write", Path: "f", Err: unix.ENOSPC})
	if !errors.Is(err, errclass.Exhausted) {
		t.Error(err)
	}
}

func TestStream_getsEverything(t *testing.T) {
	t.Parallel()
	data := newContent()
	image, hashes := describeImage(data)
	var out bytes.Buffer
	transfer, err := NewTransfer(image, &Stream{To: &out})
	mustSucceed(t, err, transfer.Begin(t.Context(), hashes))
	receiveRest(t, transfer, data)
	mustSucceed(t, transfer.Finish())
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes differ", out.Len())
	}
	reader, writer := io.Pipe()
	mustSucceed(t, reader.Close())
	transfer, err = NewTransfer(image, &Stream{To: writer})
	mustSucceed(t, err, transfer.Begin(t.Context(), hashes))
	var local *LocalError
	if err := transfer.Receive(t.Context(), bytes.NewReader(data)); !errors.As(err, &local) {
		t.Error(err)
	}
}
