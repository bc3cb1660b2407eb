package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository"
)

// Scripts about repositories have their configuration in $WORK, no password, and these commands:
//
//	point VAR NAME TIME DISK=BYTES|DISK+OFFSET,LENGTH...   makes a restore point, with the password in the file $WORK/password
//	tree VAR NAME TIME DIRECTORY                           makes a restore point of the files in a directory
//	unheard args...                                        runs varve with a standard error that nobody reads any more
//	either args...                                         runs varve until it has ended with both exit codes, 0 and 1
//	nameless NAME                                          makes a restore point without an ID, as only another program does
//	change_password NEW                                    changes the password, as kopia does, from the one in the file $WORK/password
//	damage VAR flip|remove|forget                          damages the data that the restore point brought, or removes its tables
//
// point makes a disk of random bytes, or writes random bytes to the disk as it was. Afterwards $VAR is the ID, and
// $VAR_SHORT its beginning.
func TestRepository(t *testing.T) {
	t.Parallel()
	all := map[string]func(*testscript.TestScript, bool, []string){"point": point, "tree": tree, "damage": damage, "nameless": nameless, "unheard": unheard, "either": either, "change_password": changePassword}
	for name, f := range commands {
		all[name] = f
	}
	testscript.Run(t, testscript.Params{Dir: "testdata/repository", Cmds: all, Setup: func(env *testscript.Env) error {
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		return os.WriteFile(filepath.Join(env.WorkDir, "password"), []byte("secret of this test\n"), 0o600)
	}})
}

// memory is a disk's content.
type memory []byte

func (m memory) ReadAt(_ context.Context, p []byte, offset int64) error {
	copy(p, m[offset:])
	return nil
}

func point(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 4 {
		ts.Fatalf("usage: point VAR NAME TIME DISK=BYTES|DISK+OFFSET,LENGTH...")
	}
	at, err := time.Parse(time.RFC3339, args[2])
	ts.Check(err)
	request := repository.Request{Source: repository.Source{Host: "host1", User: "varve", Path: "/" + args[1]}, Time: at}
	for _, spec := range args[3:] {
		d, err := generated(ts.MkAbs("disks-"+args[1]), spec, args[2])
		ts.Check(err)
		request.Disks = append(request.Disks, d)
	}
	ctx := context.Background()
	password, err := os.ReadFile(ts.MkAbs("password"))
	ts.Check(err)
	r, err := repository.Open(ctx, ts.MkAbs("config/varve/repository.config"), strings.TrimSpace(string(password)))
	ts.Check(err)
	before := packs(ts, "pq")
	p, err := r.Backup(ctx, request)
	ts.Check(err)
	ts.Check(r.Close(ctx))
	for variable, kind := range map[string]string{"_BLOBS": "p", "_TABLES": "q"} {
		fresh := slices.DeleteFunc(packs(ts, kind), func(path string) bool { return slices.Contains(before, path) })
		ts.Setenv(args[0]+variable, strings.Join(fresh, "\n"))
	}
	ts.Setenv(args[0], p.ID)
	ts.Setenv(args[0]+"_SHORT", p.ID[:12])
}

func tree(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: tree VAR NAME TIME DIRECTORY")
	}
	at, err := time.Parse(time.RFC3339, args[2])
	ts.Check(err)
	ctx := context.Background()
	password, err := os.ReadFile(ts.MkAbs("password"))
	ts.Check(err)
	r, err := repository.Open(ctx, ts.MkAbs("config/varve/repository.config"), strings.TrimSpace(string(password)))
	ts.Check(err)
	p, err := r.BackupFiles(ctx, repository.FilesRequest{
		Source: repository.Source{Host: "host1", User: "varve", Path: "/" + args[1]}, Root: ts.MkAbs(args[3]), Identity: "the claim", Time: at,
	})
	ts.Check(err)
	ts.Check(r.Close(ctx))
	ts.Setenv(args[0], p.ID)
	ts.Setenv(args[0]+"_SHORT", p.ID[:12])
}

// generated returns the disk that spec describes. It keeps the disk's content and the time of its backup in dir.
func generated(dir, spec, now string) (repository.DiskSource, error) {
	none := repository.DiskSource{}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return none, err
	}
	source := repository.DiskSource{Identity: "the only one", Change: "at " + now}
	name, size, fresh := strings.Cut(spec, "=")
	var data []byte
	if fresh {
		n, err := strconv.Atoi(size)
		if err != nil {
			return none, err
		}
		data = random(n, spec+now)
	} else {
		var e extent.Extent
		name, size, _ = strings.Cut(spec, "+")
		if _, err := fmt.Sscanf(size, "%d,%d", &e.Offset, &e.Length); err != nil {
			return none, err
		}
		since, err := os.ReadFile(filepath.Join(dir, name+".change"))
		if err != nil {
			return none, err
		}
		if data, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return none, err
		}
		copy(data[e.Offset:e.End()], random(int(e.Length), spec+now))
		source.Changes = &repository.Changes{Since: string(since), Set: extent.NewSet(e)}
	}
	source.Name, source.Bytes, source.Reader = name, int64(len(data)), memory(data)
	if err := os.WriteFile(filepath.Join(dir, name+".change"), []byte(source.Change), 0o600); err != nil {
		return none, err
	}
	return source, os.WriteFile(filepath.Join(dir, name), data, 0o600)
}

// random returns n bytes that are always the same for a seed.
func random(n int, seed string) []byte {
	var key [32]byte
	copy(key[:], seed)
	out := make([]byte, n)
	if _, err := rand.NewChaCha8(key).Read(out); err != nil {
		panic(err)
	}
	return out
}

// packs returns the blobs of the repository in $WORK/blobs whose names begin with one of kinds, or none if the
// repository is elsewhere.
func packs(ts *testscript.TestScript, kinds string) (out []string) {
	if _, err := os.Stat(ts.MkAbs("blobs")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ts.Check(filepath.WalkDir(ts.MkAbs("blobs"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(kinds, strings.TrimPrefix(path, ts.MkAbs("blobs")+"/")[:1]) {
			out = append(out, path)
		}
		return err
	}))
	return out
}

func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || ts.Getenv(args[0]+"_BLOBS") == "" {
		ts.Fatalf("usage: damage VAR flip|remove|forget, of a restore point that brought data")
	}
	blobs := ts.Getenv(args[0] + "_BLOBS")
	if args[1] == "forget" {
		blobs = ts.Getenv(args[0] + "_TABLES")
	}
	for path := range strings.SplitSeq(blobs, "\n") {
		if args[1] != "flip" {
			ts.Check(os.Remove(path))
			continue
		}
		data, err := os.ReadFile(path)
		ts.Check(err)
		data[len(data)/2] ^= 1
		ts.Check(os.WriteFile(path, data, 0o600))
	}
}

func nameless(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: nameless NAME")
	}
	ctx := context.Background()
	password, err := os.ReadFile(ts.MkAbs("password"))
	ts.Check(err)
	r, err := repo.Open(ctx, ts.MkAbs("config/varve/repository.config"), strings.TrimSpace(string(password)), nil)
	ts.Check(err)
	ts.Check(repo.WriteSession(ctx, r, repo.WriteSessionOptions{}, func(ctx context.Context, w repo.RepositoryWriter) error {
		_, err := snapshot.SaveSnapshot(ctx, w, &snapshot.Manifest{
			Source: snapshot.SourceInfo{Host: "host1", UserName: "varve", Path: "/" + args[0]}, Tags: map[string]string{"tag:varve": "1"},
		})
		return err
	}))
	ts.Check(r.Close(ctx))
}

func changePassword(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: change_password NEW")
	}
	ctx := context.Background()
	password, err := os.ReadFile(ts.MkAbs("password"))
	ts.Check(err)
	r, err := repo.Open(ctx, ts.MkAbs("config/varve/repository.config"), strings.TrimSpace(string(password)), nil)
	ts.Check(err)
	direct, ok := r.(repo.DirectRepository)
	if !ok {
		ts.Fatalf("a %T has no password", r)
	}
	ts.Check(direct.FormatManager().ChangePassword(ctx, args[0]))
	ts.Check(r.Close(ctx))
}

func either(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: either args...")
	}
	ended := map[int]bool{}
	for range 60 {
		err := ts.Exec("varve", args...)
		var exit *exec.ExitError
		switch {
		case err == nil:
			ended[0] = true
		case errors.As(err, &exit):
			ended[exit.ExitCode()] = true
		default:
			ts.Fatalf("%v", err)
		}
		if ended[0] && ended[1] {
			return
		}
	}
	ts.Fatalf("exit codes %v only", slices.Sorted(maps.Keys(ended)))
}

func unheard(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: unheard args...")
	}
	read, write, err := os.Pipe()
	ts.Check(err)
	ts.Check(read.Close())
	program, _, _ := strings.Cut(ts.Getenv("PATH"), string(os.PathListSeparator))
	cmd := exec.Command(filepath.Join(program, "varve"), args...)
	cmd.Dir, cmd.Stderr = ts.MkAbs("."), write
	for _, name := range []string{"PATH", "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "VARVE_PASSWORD"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	out, err := cmd.Output()
	ts.Check(errors.Join(err, write.Close()))
	ts.Logf("%s", out)
}
