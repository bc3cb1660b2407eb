//go:build peers

package repositoryaccess

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/storage"
	"github.com/varvebackup/varve/internal/repository/storage/advice"
	"github.com/varvebackup/varve/test/s3"
)

func bucket(e s3.Endpoint, prefix string) datamove.Access {
	return datamove.Access{Password: testPassword, S3: &datamove.S3Access{
		Endpoint: e.Address, Bucket: e.Bucket, Prefix: prefix, Region: e.Region, PlainHTTP: e.Authority == nil, RootCA: e.Authority, AccessKey: e.AccessKey, SecretKey: e.SecretKey,
	}}
}

func TestS3_aRepositoryIsMadeAndKeptApart(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	s := NewStore(time.Now, nil)
	root, a := bucket(server.Endpoint, "a/plugins/varve/"), bucket(server.Endpoint, "a/plugins/varve/shop/")
	if err := s.Try(t.Context(), root, true); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Find(t.Context(), root, []string{"bank"}); err != nil || found != "" {
		t.Fatalf("%q %v", found, err)
	}
	id, err := s.Prepare(t.Context(), a, location.Lock{})
	if err != nil {
		t.Fatal(err)
	}
	if found, err := s.Find(t.Context(), root, []string{"bank"}); err != nil || found != "shop" {
		t.Errorf("%q %v", found, err)
	}
	if found, err := s.Find(t.Context(), bucket(server.Endpoint, "b/plugins/varve/"), nil); err != nil || found != "" {
		t.Errorf("%q %v", found, err)
	}
	a.UniqueID = id
	if err := s.Check(t.Context(), a); err != nil {
		t.Error(err)
	}
	// What tries a location leaves nothing behind.
	client := server.Client(t)
	for o := range client.ListObjects(t.Context(), server.Bucket, listAll) {
		if strings.Contains(o.Key, probe) {
			t.Errorf("%s stays", o.Key)
		}
	}
}

func TestS3_listsRepositories(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	s := NewStore(time.Now, nil)
	root := bucket(server.Endpoint, "a/plugins/varve/")
	checkCatalogue(t, s, root, stored(t, s, root, "shop", "bank", "web"))
	if got, err := s.List(t.Context(), bucket(server.Endpoint, "b/plugins/varve/"), nil, 10); err != nil || len(got.Found) > 0 {
		t.Errorf("another prefix: %+v %v", got, err)
	}
}

func TestS3_saysWhatIsWrong(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	s := NewStore(time.Now, nil)
	root := func(edit func(*datamove.S3Access)) datamove.Access {
		a := bucket(server.Endpoint, "p/")
		edit(a.S3)
		return a
	}
	for name, c := range map[string]struct {
		a    datamove.Access
		want string
	}{
		"a wrong key":          {root(func(s *datamove.S3Access) { s.SecretKey = "wrong" }), "refuses the keys"},
		"no bucket":            {root(func(s *datamove.S3Access) { s.Bucket = "another" }), "no such bucket"},
		"an unknown authority": {root(func(s *datamove.S3Access) { s.RootCA = nil }), "certificate is not trusted"},
		"nobody there":         {root(func(s *datamove.S3Access) { s.Endpoint = "127.0.0.1:1" }), "does not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := time.Now()
			err := s.Try(t.Context(), c.a, true)
			if text := Explain(err, c.a, Words{Place: "the place"}); err == nil || !strings.Contains(text, c.want) {
				t.Errorf("%s, want %s", text, c.want)
			}
			if took := time.Since(started); took > 25*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	late := NewStore(func() time.Time { return time.Now().Add(time.Hour) }, nil)
	var skew *SkewError
	if err := late.Try(t.Context(), bucket(server.Endpoint, "p/"), true); !errors.As(err, &skew) {
		t.Errorf("a clock that is wrong: %v", err)
	}
	readOnly := bucket(server.Endpoint, "p/")
	readOnly.ReadOnly = true
	if err := late.Try(t.Context(), readOnly, true); err != nil {
		t.Errorf("read-only: %v", err)
	}
}

func TestS3_anotherRepositoryInItsPlace(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	s := NewStore(time.Now, nil)
	a := bucket(server.Endpoint, "plugins/varve/shop/")
	var err error
	if a.UniqueID, err = s.Prepare(t.Context(), a, location.Lock{}); err != nil {
		t.Fatal(err)
	}
	server.Kill(t)
	err = s.Check(t.Context(), a)
	if known, _ := advice.For(err, advice.Voice{StorageOnly: true}); known.Cause != advice.Silent {
		t.Errorf("a dead server: %v", err)
	}
	server.Restart(t)
	client := server.Client(t)
	for o := range client.ListObjects(t.Context(), server.Bucket, listAll) {
		if err := client.RemoveObject(t.Context(), server.Bucket, o.Key, removeAny); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Prepare(t.Context(), a, location.Lock{}); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
	other := a
	other.UniqueID = ""
	if _, err := s.Prepare(t.Context(), other, location.Lock{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), a, location.Lock{}); !errors.Is(err, storage.ErrReplaced) {
		t.Errorf("%v", err)
	}
	other.Password = "x"
	if _, err := s.Prepare(t.Context(), other, location.Lock{}); !errors.Is(err, repository.ErrPassword) {
		t.Errorf("%v", err)
	}
}

func TestS3_objectLock(t *testing.T) {
	t.Parallel()
	lock := location.Lock{Mode: "GOVERNANCE", Period: 24 * time.Hour}
	server := s3.Start(t, s3.Options{ObjectLock: true})
	a := bucket(server.Endpoint, "plugins/varve/shop/")
	s := NewStore(time.Now, nil)
	if err := s.Try(t.Context(), bucket(server.Endpoint, "plugins/varve/"), true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), a, lock); err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(t.Context(), a, repository.ConnectOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	status, err := r.Status(t.Context())
	if err != nil || status.ObjectLock == nil || status.ObjectLock.Mode != lock.Mode || status.ObjectLock.Period != lock.Period {
		t.Errorf("%+v %v", status, err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	without := s3.Start(t, s3.Options{})
	if _, err := s.Prepare(t.Context(), bucket(without.Endpoint, "p/"), lock); err == nil || !strings.Contains(err.Error(), "object lock") {
		t.Errorf("a bucket without: %v", err)
	}
}

var (
	listAll   = minio.ListObjectsOptions{Recursive: true}
	removeAny = minio.RemoveObjectOptions{}
)
