package repositoryaccess

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
)

// serveKeys is a bucket that has these keys and answers listings. Unlike file systems, it takes a name as it is.
func serveKeys(t *testing.T, keys ...string) datamove.Access {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		if r.URL.Query().Get("list-type") == "" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchKey</Code></Error>")
			return
		}
		prefix := r.URL.Query().Get("prefix")
		fmt.Fprint(w, "<ListBucketResult><IsTruncated>false</IsTruncated>")
		for _, key := range keys {
			if rest, ok := strings.CutPrefix(key, prefix); ok {
				name, _, _ := strings.Cut(rest, "/")
				fmt.Fprintf(w, "<CommonPrefixes><Prefix>%s%s/</Prefix></CommonPrefixes>", prefix, name)
			}
		}
		fmt.Fprint(w, "</ListBucketResult>")
	}))
	t.Cleanup(server.Close)
	return datamove.Access{S3: &datamove.S3Access{
		Endpoint: strings.TrimPrefix(server.URL, "http://"), Bucket: "bucket", Region: "us-east-1", PlainHTTP: true, AccessKey: "k", SecretKey: "s",
	}}
}

// Velero cleans the prefix of a location as it cleans a path, for its backups alone. Whoever looks elsewhere takes them for deleted.
func TestBackups_areWhereVeleroHasThem(t *testing.T) {
	t.Parallel()
	for prefix, directory := range map[string]string{"": "backups/", "a": "a/backups/", "a/b": "a/b/backups/", "a//b": "a/b/backups/", "./a": "a/backups/"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			a := serveKeys(t, directory+"monday/velero-backup.json")
			a.S3.Prefix = datamove.RepositoryPrefix(prefix, "shop")
			b, err := NewStore(time.Now, nil).Backups(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if there, err := b.Has(t.Context(), "monday"); err != nil || !there {
				t.Errorf("%v %v", there, err)
			}
			if labels, err := b.Labels(t.Context()); err != nil || len(labels) != 1 {
				t.Errorf("%v %v", labels, err)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
