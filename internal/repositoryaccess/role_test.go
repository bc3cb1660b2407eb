package repositoryaccess

import (
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository/storage"
)

func TestExplain_role(t *testing.T) {
	t.Parallel()
	role := &datamove.RoleAccess{ARN: "arn:aws:iam::1:role/r", STS: "https://sts.lan"}
	a := datamove.Access{S3: &datamove.S3Access{Role: role}}
	at := storage.Role{ARN: role.ARN, STS: role.STS}
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"refused by the STS": {
			&storage.RoleError{
				Role: at, Refused: true, Code: "AccessDenied",
				Text: "AccessDenied: no",
			},
			[]string{
				"let the role trust the account system:serviceaccount:varve:varve-mover", role.ARN, role.STS,
				"AccessDenied: no",
			},
		},
		"no answer": {
			&storage.RoleError{Role: at, Text: "connection refused"},
			[]string{"it is tried again", role.ARN, role.STS, "connection refused"},
		},
		"refused by the bucket": {minio.ErrorResponse{StatusCode: http.StatusForbidden, Code: "AccessDenied", Message: "x"}, []string{"refuses the keys of role " + role.ARN}},
		"no role in the pod":    {storage.ErrNoRole, []string{"names no credential", "cloud-credentials", "varvebackup.io/role-arn", "varve/varve-mover", "AWS_ROLE_ARN"}},
	} {
		got := Explain(c.err, a, Words{Place: "s3://b", Keys: "the Secret"})
		for _, want := range c.want {
			if !strings.Contains(got, want) || !strings.HasPrefix(got, "s3://b") {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	}
}

// A pod's environment may say what a role is, and never what a key is.
func TestLook_encodesRoles(t *testing.T) {
	t.Parallel()
	look := &Look{Task: TryLocation, Root: datamove.Access{S3: &datamove.S3Access{Bucket: "b", Role: &datamove.RoleAccess{ARN: "r", STS: "s"}}}}
	got, err := DecodeLook(look.Encode())
	if err != nil || got.Root.S3.Role.ARN != "r" {
		t.Errorf("%+v %v", got, err)
	}
	look.Root.S3.SecretKey = "secret"
	defer func() {
		if recover() == nil {
			t.Error("a key is in the environment of a pod")
		}
	}()
	look.Encode()
}
