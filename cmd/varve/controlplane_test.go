//go:build controlplane

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/varvebackup/varve/test/controlplane"
)

var cluster *controlplane.Cluster

func init() {
	around = func(tests func() int) int {
		c, err := controlplane.Start(context.Background())
		if err != nil {
			fmt.Fprintf(os.Stderr, "start the control plane: %v\n", err)
			return 1
		}
		cluster = c
		code := tests()
		if err := c.Stop(); err != nil {
			fmt.Fprintf(os.Stderr, "stop the control plane: %v\n", err)
			return 1
		}
		return code
	}
}

// The scripts have a namespace of their own, in $NS, and two kubeconfigs for it: that of a user who owns machines in
// $KUBECONFIG, and that of Varve's controller in $CONTROLLER.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	params := testscript.Params{Dir: "testdata/controlplane", Cmds: withExports(t)}
	params.Setup = func(env *testscript.Env) error {
		ns := cluster.Namespace(t)
		env.Setenv("NS", ns)
		root, err := filepath.Abs("../..")
		if err != nil {
			return err
		}
		env.Setenv("ROOT", root)
		env.Setenv("PATH", assets()+":"+env.Getenv("PATH"))
		for variable, user := range map[string]controlplane.User{"KUBECONFIG": controlplane.Plain, "CONTROLLER": controlplane.Controller} {
			path := filepath.Join(env.WorkDir, variable)
			if err := clientcmd.WriteToFile(kubeconfig(cluster.ConfigFor(user), ns), path); err != nil {
				return err
			}
			env.Setenv(variable, path)
		}
		return nil
	}
	testscript.Run(t, params)
}

// assets returns the directory of kubectl.
func assets() string {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../build/kube/bin")
	if err != nil {
		panic(err)
	}
	return dir
}

func kubeconfig(c *rest.Config, namespace string) clientcmdapi.Config {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: c.CertData, ClientKeyData: c.KeyData,
		Impersonate: c.Impersonate.UserName, ImpersonateGroups: c.Impersonate.Groups,
	}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	return *config
}
