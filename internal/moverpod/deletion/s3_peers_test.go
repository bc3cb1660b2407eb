//go:build peers

package deletion

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/verdict"
)

func accessTo(e s3.Endpoint) datamove.Access {
	return datamove.Access{Password: testPassword, S3: &datamove.S3Access{
		Endpoint: e.Address, Bucket: e.Bucket, Prefix: datamove.RepositoryPrefix("cluster-a", "shop"), Region: e.Region, PlainHTTP: e.Authority == nil,
		RootCA: e.Authority, AccessKey: e.AccessKey, SecretKey: e.SecretKey,
	}}
}

// newBucket is a location in a bucket, with the repository of one namespace.
func newBucket(t *testing.T, e s3.Endpoint, lock location.Lock) *site {
	t.Helper()
	s := &site{T: t, dir: t.TempDir(), now: time.Now(), access: accessTo(e)}
	var err error
	if s.access.UniqueID, err = repositoryaccess.NewStore(time.Now, nil).Prepare(t.Context(), s.access, lock); err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, c *minio.Client, bucket, name string) {
	t.Helper()
	if _, err := c.PutObject(t.Context(), bucket, name, bytes.NewReader([]byte("{}")), 2, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestS3_deletesAndKeeps(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{TLS: true})
	s := newBucket(t, server.Endpoint, location.Lock{})
	put(t, server.Client(t), server.Bucket, "cluster-a/backups/monday/velero-backup.json")
	put(t, server.Client(t), server.Bucket, "cluster-b/backups/tuesday/velero-backup.json") // another cluster's, of the same bucket
	there, gone := s.point("a", "monday"), s.point("b", "tuesday")
	report, err := s.delete(ask(there, gone)...)
	if err != nil || len(report.Kept) != 1 || report.Kept[there].Why != datamove.KeptBackupThere {
		t.Errorf("%+v %v", report, err)
	}
	if got := s.points(); got != "a" {
		verdict.Errorf(t, "left: %q", got)
	}
}

func TestS3_keepsWhatTheBucketLocks(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{ObjectLock: true})
	s := newBucket(t, server.Endpoint, location.Lock{Mode: "GOVERNANCE", Period: 24 * time.Hour})
	id := s.point("a", "")
	report, err := s.delete(ask(id)...)
	if kept := report.Kept[id]; err != nil || kept.Why != datamove.KeptLocked || kept.Until == nil || kept.Until.Sub(s.now) > 24*time.Hour+time.Minute {
		t.Errorf("%+v %v", report, err)
	}
	s.now = s.now.Add(25 * time.Hour)
	if report, err := s.delete(ask(id)...); err != nil || len(report.Kept) != 0 {
		t.Errorf("%+v %v", report, err)
	}
}

// reply is a fault: another answer than the server's.
func reply(status int, body string) s3.Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // the client may be gone
	}
}

// A location whose backups cannot be listed, or are left out of the list, has not lost them.
func TestS3_believesNoListingAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault s3.Fault
		fails bool
	}{
		"refused": {reply(http.StatusForbidden, "<Error><Code>AccessDenied</Code></Error>"), true},
		"empty":   {reply(http.StatusOK, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := s3.Start(t, s3.Options{})
			s := newBucket(t, server.Endpoint, location.Lock{})
			put(t, server.Client(t), server.Bucket, "cluster-a/backups/monday/velero-backup.json")
			id := s.point("a", "monday")
			right := s.access
			faults := s3.StartFaults(t, server, 0, s3.Rule{
				Method: http.MethodGet, Fault: c.fault,
				Match: func(r *http.Request) bool { return strings.Contains(r.URL.Query().Get("prefix"), "cluster-a/backups") },
			})
			s.access = accessTo(faults.Endpoint)
			s.access.UniqueID = right.UniqueID
			report, err := s.delete(ask(id)...)
			if (err != nil) != c.fails || !c.fails && report.Kept[id].Why != datamove.KeptBackupThere {
				t.Errorf("%+v %v", report, err)
			}
			s.access = right
			if got := s.points(); got != "a" {
				verdict.Errorf(t, "left: %q", got)
			}
		})
	}
}

func TestS3_collects(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	s := newBucket(t, server.Endpoint, location.Lock{})
	client := server.Client(t)
	for _, name := range []string{"monday", "tuesday"} {
		put(t, client, server.Bucket, "cluster-a/backups/"+name+"/velero-backup.json")
		put(t, client, server.Bucket, "cluster-a/backups/"+name+"/"+name+".tar.gz")
	}
	s.point("a", "monday")
	s.point("b", "tuesday")
	s.looks("ab", 0)
	for o := range client.ListObjects(t.Context(), server.Bucket, minio.ListObjectsOptions{Prefix: "cluster-a/backups/monday/", Recursive: true}) {
		if err := client.RemoveObject(t.Context(), server.Bucket, o.Key, minio.RemoveObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.looks("ab", time.Hour)
	s.looks("b", long)
	// What the collector remembers is not in the way of anything else.
	s.withRepository(func(r *repository.Repository) {
		if err := r.Maintain(t.Context(), repository.MaintenanceOptions{Mode: repository.FullMaintenance}); err != nil {
			t.Error(err)
		}
	})
}

// A list of backups that leaves one out, in every look, has not lost it.
func TestS3_collectsNothingThatAListLeavesOut(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{})
	s := newBucket(t, server.Endpoint, location.Lock{})
	for _, name := range []string{"monday", "tuesday"} {
		put(t, server.Client(t), server.Bucket, "cluster-a/backups/"+name+"/velero-backup.json")
	}
	s.point("a", "monday")
	s.looks("a", 0)
	faults := s3.StartFaults(t, server, 0, s3.Rule{
		Method: http.MethodGet,
		Match:  func(r *http.Request) bool { return r.URL.Query().Get("prefix") == "cluster-a/backups/" },
		Fault:  reply(http.StatusOK, "<ListBucketResult><IsTruncated>false</IsTruncated><CommonPrefixes><Prefix>cluster-a/backups/tuesday/</Prefix></CommonPrefixes></ListBucketResult>"),
	})
	id := s.access.UniqueID
	s.access = accessTo(faults.Endpoint)
	s.access.UniqueID = id
	s.looks("a", time.Hour, long, long)
	if !strings.Contains(s.log.String(), "a backup that was not listed is there") {
		t.Errorf("the list is whole: %s", s.log.String())
	}
}

func TestS3_collectsNothingThatTheBucketLocks(t *testing.T) {
	t.Parallel()
	const period = 72 * time.Hour
	server := s3.Start(t, s3.Options{ObjectLock: true})
	s := newBucket(t, server.Endpoint, location.Lock{Mode: "GOVERNANCE", Period: period})
	client := server.Client(t)
	for _, name := range []string{"monday", "tuesday"} {
		put(t, client, server.Bucket, "cluster-a/backups/"+name+"/velero-backup.json")
	}
	id := s.point("a", "monday")
	s.looks("a", 0)
	// versitygw lists a directory that has deleted versions alone.
	for o := range client.ListObjects(t.Context(), server.Bucket, minio.ListObjectsOptions{Prefix: "cluster-a/backups/monday/", Recursive: true, WithVersions: true}) {
		if err := client.RemoveObject(t.Context(), server.Bucket, o.Key, minio.RemoveObjectOptions{VersionID: o.VersionID}); err != nil {
			t.Fatal(err)
		}
	}
	if done := s.looks("a", time.Hour, long); done.Kept[id].Why != datamove.KeptLocked {
		t.Errorf("%+v", done)
	}
	s.looks("", period)
}
