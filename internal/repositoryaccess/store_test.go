package repositoryaccess

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice/advicetest"
)

func TestMain(m *testing.M) {
	storage.Register()
	goleak.VerifyTestMain(m)
}

const testPassword = "pa55word"

func at(dir string) datamove.Access { return datamove.Access{Directory: dir, Password: testPassword} }

func prepare(t *testing.T, a datamove.Access) (string, error) {
	t.Helper()
	return NewStore(time.Now, nil).Prepare(t.Context(), a, location.Lock{})
}

func TestPrepare_makesOneAndFindsItAgain(t *testing.T) {
	t.Parallel()
	a := at(filepath.Join(t.TempDir(), "plugins", "varve", "shop"))
	first, err := prepare(t, a)
	if err != nil || first == "" {
		t.Fatalf("%q %v", first, err)
	}
	// A controller that dies before it notes the ID finds the same repository.
	again, err := prepare(t, a)
	if err != nil || again != first {
		t.Fatalf("%q %v, want %q", again, err, first)
	}
	for _, readOnly := range []bool{false, true} {
		a.UniqueID, a.ReadOnly = first, readOnly
		if id, err := prepare(t, a); err != nil || id != first {
			t.Errorf("read-only %v: %q %v", readOnly, id, err)
		}
		if err := NewStore(time.Now, nil).Check(t.Context(), a); err != nil {
			t.Errorf("read-only %v: %v", readOnly, err)
		}
	}
}

func TestPrepare_refusals(t *testing.T) {
	t.Parallel()
	made := filepath.Join(t.TempDir(), "made")
	id, err := prepare(t, at(made))
	if err != nil {
		t.Fatal(err)
	}
	empty, files := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(files, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		a    datamove.Access
		want error
	}{
		"a wrong password":          {datamove.Access{Directory: made, Password: "x"}, repository.ErrPassword},
		"another repository":        {datamove.Access{Directory: made, Password: testPassword, UniqueID: strings.Repeat("0", len(id))}, storage.ErrReplaced},
		"one that is gone":          {datamove.Access{Directory: empty, Password: testPassword, UniqueID: id}, ErrGone},
		"nothing, read-only":        {datamove.Access{Directory: empty, Password: testPassword, ReadOnly: true}, ErrNothingToRead},
		"somebody else's directory": {at(files), errclass.Conflict},
		"no password":               {datamove.Access{Directory: empty}, errclass.Invalid},
	} {
		if _, err := prepare(t, c.a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if exists, err := NewStore(time.Now, nil).Exists(t.Context(), at(empty)); err != nil || exists {
		t.Errorf("a refusal makes a repository: %v %v", exists, err)
	}
	gone := datamove.Access{Directory: empty, Password: testPassword, UniqueID: id}
	if err := NewStore(time.Now, nil).Check(t.Context(), gone); !errors.Is(err, errclass.NotFound) {
		t.Errorf("check of one that is gone: %v", err)
	}
	gone.Directory, gone.UniqueID = made, strings.Repeat("0", len(id))
	if err := NewStore(time.Now, nil).Check(t.Context(), gone); !errors.Is(err, storage.ErrReplaced) {
		t.Errorf("check of another: %v", err)
	}
	if r, err := NewStore(time.Now, nil).Open(t.Context(), gone, repository.ConnectOptions{}); !errors.Is(err, storage.ErrReplaced) {
		t.Errorf("open another: %v %v", r, err)
	}
}

// A repository that has lost its format is still there: nobody may take its place, and the copy brings it back.
func TestPrepare_restoresALostFormat(t *testing.T) {
	t.Parallel()
	a := at(filepath.Join(t.TempDir(), "made"))
	var err error
	if a.UniqueID, err = prepare(t, a); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(a.Directory, "kopia.repository.f")); err != nil {
		t.Fatal(err)
	}
	if exists, err := NewStore(time.Now, nil).Exists(t.Context(), a); err != nil || !exists {
		t.Errorf("%v %v", exists, err)
	}
	if id, err := prepare(t, a); err != nil || id != a.UniqueID {
		t.Errorf("%q %v", id, err)
	}
}

// What cannot be mended in passing is damage, and no wrong password.
func TestPrepare_saysWhatIsDamaged(t *testing.T) {
	t.Parallel()
	a := at(filepath.Join(t.TempDir(), "made"))
	id, err := prepare(t, a)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kopia.repository", "kopia.blobcfg"} {
		file := filepath.Join(a.Directory, name+".f")
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		a.UniqueID, a.ReadOnly = id, true
		_, err = prepare(t, a)
		if !errors.Is(err, errclass.Corrupt) || !strings.Contains(err.Error(), name) ||
			errors.Is(err, repository.ErrPassword) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	s, root := NewStore(time.Now, nil), filepath.Join(t.TempDir(), "plugins", "varve")
	found := func(want string, known ...string) {
		t.Helper()
		if got, err := s.Find(t.Context(), at(root), known); err != nil || got != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	found("")
	if err := s.Try(t.Context(), at(root), true); err != nil {
		t.Fatal(err)
	}
	found("")
	if _, err := prepare(t, at(filepath.Join(root, "shop"))); err != nil {
		t.Fatal(err)
	}
	found("shop")
	found("", "shop")
	found("shop", "bank")
	for name, want := range map[string]bool{"shop": true, "other": false} {
		if got, err := s.Exists(t.Context(), at(filepath.Join(root, name))); err != nil || got != want {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

func TestTry_directory(t *testing.T) {
	t.Parallel()
	s, root := NewStore(time.Now, nil), filepath.Join(t.TempDir(), "new")
	for _, write := range []bool{false, true, true} {
		if err := s.Try(t.Context(), at(root), write); err != nil {
			t.Error(err)
		}
		if entries, err := os.ReadDir(root); write && (err != nil || len(entries) > 0) {
			t.Errorf("it leaves %v %v", entries, err)
		}
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, write := range []bool{false, true} {
		if err := s.Try(t.Context(), at(file), write); err == nil {
			t.Errorf("write %v: a file is a location", write)
		}
	}
}

func TestExplain_saysWhatToDoAndNoSecret(t *testing.T) {
	t.Parallel()
	a := datamove.Access{Password: testPassword, S3: &datamove.S3Access{AccessKey: "AKID", SecretKey: "s3cr3t/+", SessionToken: "t0ken"}}
	words := Words{Place: "s3://m/b/plugins/varve/shop/", Keys: "Secret velero/keys", Password: "key password of Secret varve/p"}
	answer := func(status int, code string) error {
		return fmt.Errorf("put AKID s3cr3t%%2F%%2B s3cr3t/+ t0ken %s: %w", testPassword, minio.ErrorResponse{StatusCode: status, Code: code, Message: code})
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"password":      {repository.ErrPassword, words.Password},
		"replaced":      {storage.ErrReplaced, "delete the BackupRepository"},
		"gone":          {ErrGone, "not in s3://m/b/plugins/varve/shop/ any more"},
		"read-only":     {ErrNothingToRead, "read-only"},
		"no bucket":     {repository.ErrNoBucket, "no such bucket"},
		"denied":        {answer(http.StatusForbidden, "AccessDenied"), "refuses the keys in Secret velero/keys"},
		"skew":          {&SkewError{Here: time.Unix(1e9, 0), There: time.Unix(2e9, 0)}, "2033-05-18T03:33:20Z"},
		"unreachable":   {fmt.Errorf("%w from AKID", repository.ErrUnreachable), "it is tried again"},
		"anything else": {errors.New("a flood of " + testPassword), "a flood of [hidden]"},
	} {
		got := Explain(c.err, a, words)
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", name, got)
		}
		for _, secret := range []string{"AKID", "s3cr3t", "t0ken", testPassword} {
			if strings.Contains(got, secret) {
				t.Errorf("%s shows a secret: %s", name, got)
			}
		}
	}
}

// The status of an object gives the advice that everybody gives.
func TestExplain_storage(t *testing.T) {
	t.Parallel()
	bucket := datamove.Access{S3: &datamove.S3Access{}}
	for _, c := range advicetest.Cases() {
		a := bucket
		if c.Directory {
			a = at("/x")
		}
		got := Explain(c.Err, a, Words{Place: "the shelf", Keys: "the Secret"})
		if !strings.HasPrefix(got, "the shelf") || !strings.HasSuffix(got, ": "+c.Err.Error()) {
			t.Errorf("%s: %s", c.Name, got)
		}
		for _, want := range []string{c.What, c.Do} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", c.Name, got, want)
			}
		}
	}
}

func TestExplain_directory(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]string{
		&os.PathError{Op: "mkdir", Path: "/x", Err: syscall.EACCES}:                                      "as user 0",
		fmt.Errorf("open: %w", &os.PathError{Op: "open", Path: "/x", Err: syscall.EROFS}):                "accessMode to ReadOnly",
		fmt.Errorf("%w: %w", errclass.Denied, &os.PathError{Op: "open", Path: "/x", Err: syscall.EPERM}): "as user 0",
	} {
		if got := Explain(err, at("/x"), Words{Place: "claim shelf"}); !strings.Contains(got, want) || !strings.HasPrefix(got, "claim shelf") {
			t.Errorf("%v: %s", err, got)
		}
	}
}

// What a pod is told has no password, and its answer fits into a termination message, whatever went wrong.
func TestLook_passesThroughAPod(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	look := &Look{
		Task: PrepareRepository, Root: at(dir), Access: at(filepath.Join(dir, "shop")), Lock: location.Lock{}, Known: []string{"bank"}, SharedPassword: true,
		Words: Words{Place: "claim shelf", Password: "key password of Secret varve/p"},
	}
	text := look.Encode()
	if strings.Contains(text, testPassword) {
		t.Error(text)
	}
	decoded, err := DecodeLook(text)
	if err != nil {
		t.Fatal(err)
	}
	decoded.Access.Password = testPassword
	seen, err := DecodeSeen(string(decoded.Run(t.Context(), NewStore(time.Now, nil)).Encode()))
	if err != nil || seen.Failure != "" || seen.UniqueID == "" {
		t.Fatalf("%+v %v", seen, err)
	}
	decoded.Access.Password = "other"
	if seen := decoded.Run(t.Context(), NewStore(time.Now, nil)); !strings.Contains(seen.Failure, "the password does not open") {
		t.Errorf("%+v", seen)
	}
	long := Seen{Failure: strings.Repeat("\"ö", 3000), UniqueID: seen.UniqueID}
	if again, err := DecodeSeen(string(long.Encode())); len(long.Encode()) > 4096 || err != nil || again.UniqueID != seen.UniqueID || !strings.HasPrefix(long.Failure, strings.TrimSuffix(again.Failure, "…")) {
		t.Errorf("%d bytes, %v, %q", len(long.Encode()), err, again.Failure)
	}
	for _, text := range []string{"", "x", `{"unknown":1}`} {
		if _, err := DecodeLook(text); err == nil {
			t.Errorf("a look %q", text)
		}
		if _, err := DecodeSeen(text); err == nil {
			t.Errorf("an answer %q", text)
		}
	}
}
