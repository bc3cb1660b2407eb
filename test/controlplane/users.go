package controlplane

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// User is a user of the API server.
type User struct {
	// Name is the user's name as admission sees it.
	Name string
	// Groups are the user's groups apart from system:authenticated.
	Groups []string
	// Extra is what the user's credentials contain apart from name and groups.
	Extra map[string][]string
	// Restricted says that the user may do only what the roles of deploy/rbac grant. InstallRoles applies them. All
	// other users may do everything.
	Restricted bool
}

// Restrict returns the user as one who may do only what the roles of deploy/rbac grant.
func (u User) Restrict() User {
	u.Restricted = true
	return u
}

// nodeNameKey is the key under which the API server puts the node of the pod that a token belongs to.
const nodeNameKey = "authentication.kubernetes.io/node-name"

// everything is the group of users who may do everything.
const everything = "test:everything"

var (
	// Admin is the cluster's administrator, in group system:masters, and not a service account of Varve.
	Admin = User{Name: "admin", Groups: []string{"system:masters"}}
	// Plain is a user who owns virtual machines.
	Plain = User{Name: "plain"}
	// Controller is the service account of `varve controller`.
	Controller = ServiceAccount(SystemNamespace, "varve-controller")
	// UnboundHandler is the service account of `varve handler` with a token that is not bound to a node. No real
	// handler has such a token.
	UnboundHandler = ServiceAccount(SystemNamespace, "varve-handler")
)

// HandlerOn returns the service account of `varve handler` with the token that a node's kubelet gives to the handler's pod.
func HandlerOn(node string) User {
	user := UnboundHandler
	user.Extra = map[string][]string{nodeNameKey: {node}}
	return user
}

// ServiceAccount returns a service account as a user.
func ServiceAccount(namespace, name string) User {
	return User{
		Name:   "system:serviceaccount:" + namespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
	}
}

// ConfigFor returns a configuration that connects as user.
func (c *Cluster) ConfigFor(user User) *rest.Config {
	cfg := rest.CopyConfig(c.Config)
	groups := append([]string{"system:authenticated"}, user.Groups...)
	if !user.Restricted {
		groups = append(groups, everything)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user.Name, Groups: groups, Extra: user.Extra}
	return cfg
}

// Client returns a client that acts as user, without a cache. It refuses unknown and duplicate fields. All clients share
// what one of them has learned of the kinds there are.
func (c *Cluster) Client(tb testing.TB, user User) client.Client {
	tb.Helper()
	cl, err := client.New(c.ConfigFor(user), client.Options{Scheme: c.Scheme, Mapper: c.mapper})
	if err != nil {
		tb.Fatalf("make a client for %s: %v", user.Name, err)
	}
	return client.WithFieldValidation(cl, "Strict")
}

// WatchingClient returns a client that acts as user and can watch, without a cache.
func (c *Cluster) WatchingClient(tb testing.TB, user User) client.WithWatch {
	tb.Helper()
	cl, err := client.NewWithWatch(c.ConfigFor(user), client.Options{Scheme: c.Scheme, Mapper: c.mapper})
	if err != nil {
		tb.Fatalf("make a watching client for %s: %v", user.Name, err)
	}
	return cl
}

// Kubeconfig returns the path of a file that connects as user, for programs. Their default namespace is the given one.
func (c *Cluster) Kubeconfig(tb testing.TB, user User, namespace string) string {
	tb.Helper()
	file, config := clientcmdapi.NewConfig(), c.ConfigFor(user)
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups, ImpersonateUserExtra: config.Impersonate.Extra,
	}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test", Namespace: namespace}
	file.CurrentContext = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		tb.Fatalf("write a kubeconfig for %s: %v", user.Name, err)
	}
	return path
}
