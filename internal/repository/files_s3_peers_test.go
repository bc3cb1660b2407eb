//go:build peers

package repository

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

// Files go into a bucket and come back, to whoever has nothing but the address and the password.
func TestFiles_inABucket(t *testing.T) {
	t.Parallel()
	e := s3.Start(t, s3.Options{TLS: true}).Endpoint
	at := Location{S3: &S3{
		Endpoint: e.Address, Bucket: e.Bucket, Region: e.Region, Prefix: "plugins/varve/app/", RootCA: e.Authority, AccessKey: e.AccessKey, SecretKey: e.SecretKey,
	}}
	if err := Create(t.Context(), at, testPassword, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	connect := func(o ConnectOptions) *Repository {
		t.Helper()
		r, err := OpenLocation(t.Context(), at, testPassword, o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	m := newTree(t)
	m.manyFiles(300)
	m.check(os.Link(m.path("d00/f00000"), m.path("hard")))
	m.check(os.Symlink("d00", m.path("link")))
	m.sparse("sparse", 40<<20, map[int64]string{5 << 20: "five", 33<<20 + 17: "later"})
	m.pass()
	m.file("newest", nil, 0o644) // what has its time of change is read again
	r := connect(ConnectOptions{})
	first := mustBackUpFiles(t, r, filesRequest(m.root, 1))
	before := readTree(t, m.root)
	m.pass()
	m.file("d00/f00001", []byte("changed"), 0o600)
	m.age("d00/f00001", time.Unix(5, 0))
	second := mustBackUpFiles(t, r, filesRequest(m.root, 2))
	if s := second.Files; s.Parent != first.ID || s.FullReason != "" || s.Stats.ReadFiles > 10 {
		t.Errorf("the second backup: %+v", s)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	r = connect(ConnectOptions{ReadOnly: true, Host: "another", User: "one"})
	points, err := r.List(t.Context(), nil)
	if err != nil || len(points) != 2 {
		t.Fatalf("%d restore points, %v", len(points), err)
	}
	compareTrees(t, before, readTree(t, mustRestoreFiles(t, r, first)))
	compareTrees(t, readTree(t, m.root), readTree(t, mustRestoreFiles(t, r, second)))
	report, err := r.Verify(t.Context(), VerifyOptions{Percent: 100})
	if err := errors.Join(err, r.Close(t.Context())); err != nil || len(report.Damage) > 0 {
		verdict.JudgeErrorf(t, err == nil, "%+v, %v", report, err)
	}
}
