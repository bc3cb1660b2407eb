//go:build peers

package moverpod

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/test/s3"
)

// A mover whose pod has a role as EKS gives it moves a disk into a bucket and back. Its keys live for six seconds, and it takes longer.
func TestMover_outlivesTheKeysOfItsRole(t *testing.T) {
	server := s3.Start(t, s3.Options{TLS: true})
	faults := s3.StartFaults(t, server, 0)
	sts := s3.StartFakeSTS(t, server, 6*time.Second)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(sts.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ROLE_ARN", sts.Role)
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	access := datamove.Access{Password: testPassword, S3: &datamove.S3Access{
		Endpoint: faults.Address, Bucket: server.Bucket, Prefix: prefix, Region: server.Region, RootCA: append(server.Authority, sts.Authority...),
		Role: &datamove.RoleAccess{STS: sts.URL},
	}}
	b := &bucket{site: makeSite(t, t.TempDir(), repositoryaccess.Locate(access), access), server: server, faults: faults}
	device := filepath.Join(t.TempDir(), "device")
	content := writeSparse(t, device, 192*mib, map[int64][]byte{0: noise(192*mib, 1)})

	b.set(s3.Rule{Method: http.MethodPut, Key: prefix + "p", Fault: s3.Delay(2 * time.Second)})
	before := sts.Count()
	up := b.newPod(t, newUpload(block), device)
	report := up.run(t, datamove.Succeeded)
	if renewals := sts.Count() - before; renewals < 2 {
		t.Errorf("keys were asked for %d times: the upload was too fast for a renewal", renewals)
	}
	b.set()
	target := filepath.Join(t.TempDir(), "target")
	writeSparse(t, target, 192*mib, nil)
	down := b.newPod(t, newDownload(block, report.SnapshotID), target)
	down.run(t, datamove.Succeeded)
	wantContent(t, target, content)

	sts.Refuse("AccessDenied")
	b.newPod(t, newUpload(block), device).fails(t, sts.Role, sts.URL, "AccessDenied")
}
