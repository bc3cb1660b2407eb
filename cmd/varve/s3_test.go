//go:build peers

package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/varvebackup/varve/test/s3"
)

// The scripts have a bucket with object lock in $LOCATION, on a TLS server whose authority is in $WORK/ca.pem.
func TestRepositoryInBucket(t *testing.T) {
	t.Parallel()
	server := s3.Start(t, s3.Options{ObjectLock: true, TLS: true})
	all := maps.Clone(commands)
	all["point"] = point
	testscript.Run(t, testscript.Params{Dir: "testdata/s3", Cmds: all, Setup: func(env *testscript.Env) error {
		env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
		env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, "cache"))
		env.Setenv("LOCATION", "s3://"+server.Address+"/"+server.Bucket)
		env.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
		env.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
		if err := os.WriteFile(filepath.Join(env.WorkDir, "ca.pem"), server.Authority, 0o600); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(env.WorkDir, "password"), []byte("secret of this test\n"), 0o600)
	}})
}
