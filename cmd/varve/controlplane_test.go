//go:build controlplane

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// The scripts have a namespace of their own, in $NS, and kubeconfigs for it: that of a user who owns machines in
// $KUBECONFIG, and that of Varve's controller in $CONTROLLER. $UPLOADER is that of a user who may upload images, and do
// nothing else.
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
		uploader := controlplane.User{Name: "upload-" + ns}.Restrict()
		bind(t, controlplane.SystemNamespace, "varve-image-upload", uploader)
		if err := cluster.InstallRoles(t.Context()); err != nil {
			return err
		}
		for variable, user := range map[string]controlplane.User{
			"KUBECONFIG": controlplane.Plain, "CONTROLLER": controlplane.Controller, "UPLOADER": uploader,
		} {
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

// The scripts have a namespace of their own, in $NS, and three kubeconfigs for it: that of a user with the role edit
// there in $KUBECONFIG, that of one with the role view in $VIEWER, and that of Varve's controller in $CONTROLLER. The
// first two may do nothing else.
func TestControlPlane_tenants(t *testing.T) {
	t.Parallel()
	params := testscript.Params{Dir: "testdata/tenant", Cmds: commands}
	params.Setup = func(env *testscript.Env) error {
		ns := cluster.Namespace(t)
		env.Setenv("PATH", assets()+":"+env.Getenv("PATH"))
		users := map[string]controlplane.User{
			"KUBECONFIG": controlplane.User{Name: "edit-" + ns}.Restrict(),
			"VIEWER":     controlplane.User{Name: "view-" + ns}.Restrict(),
			"CONTROLLER": controlplane.Controller,
		}
		// What Kubernetes' controller manager, which does not run here, would join into its roles edit and view.
		for _, role := range []string{"system:aggregate-to-view", "varve-view"} {
			bind(t, ns, role, users["VIEWER"], users["KUBECONFIG"])
		}
		for _, role := range []string{"system:aggregate-to-edit", "varve-edit"} {
			bind(t, ns, role, users["KUBECONFIG"])
		}
		if err := cluster.InstallRoles(t.Context()); err != nil {
			return err
		}
		for variable, user := range users {
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

// bind gives users a cluster's role in a namespace.
func bind(t *testing.T, ns, role string, users ...controlplane.User) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{
			APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user.Name,
		})
	}
	if err := cluster.Client(t, controlplane.Admin).Create(t.Context(), binding); err != nil {
		t.Fatalf("bind %s in %s: %v", role, ns, err)
	}
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
