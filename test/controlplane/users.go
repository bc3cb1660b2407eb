package controlplane

import (
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// User is somebody who talks to the API server.
type User struct {
	// Name is the user's name as admission sees it.
	Name string
	// Groups are the user's groups beside system:authenticated.
	Groups []string
	// Extra is what the user's credentials say beside name and groups.
	Extra map[string][]string
	// Restricted says that the user may do no more than the roles of deploy/rbac grant; InstallRoles applies them. Everybody else
	// may do everything.
	Restricted bool
}

// nodeNameKey is where the API server says which node the pod of a token is on.
const nodeNameKey = "authentication.kubernetes.io/node-name"

// everything is the group of whoever may do everything.
const everything = "test:everything"

var (
	// Admin is the cluster's administrator, in group system:masters, and no service account of Varve.
	Admin = User{Name: "admin", Groups: []string{"system:masters"}}
	// Plain is somebody who owns virtual machines.
	Plain = User{Name: "plain"}
	// Controller is the service account of `varve controller`.
	Controller = ServiceAccount(SystemNamespace, "varve-controller")
	// UnboundHandler is the service account of `varve handler` with a token that is bound to no node, which no handler has.
	UnboundHandler = ServiceAccount(SystemNamespace, "varve-handler")
)

// HandlerOn is the service account of `varve handler` with the token that the kubelet of a node gives to its handler's pod.
func HandlerOn(node string) User {
	user := UnboundHandler
	user.Extra = map[string][]string{nodeNameKey: {node}}
	return user
}

// ServiceAccount is a service account as a user.
func ServiceAccount(namespace, name string) User {
	return User{
		Name:   "system:serviceaccount:" + namespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace},
	}
}

// ConfigFor is a configuration that connects as user.
func (c *Cluster) ConfigFor(user User) *rest.Config {
	cfg := rest.CopyConfig(c.Config)
	groups := append([]string{"system:authenticated"}, user.Groups...)
	if !user.Restricted {
		groups = append(groups, everything)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user.Name, Groups: groups, Extra: user.Extra}
	return cfg
}

// Client reads and writes as user, without a cache. Unknown and duplicate fields are refused.
func (c *Cluster) Client(tb testing.TB, user User) client.Client {
	tb.Helper()
	cl, err := client.New(c.ConfigFor(user), client.Options{Scheme: c.Scheme})
	if err != nil {
		tb.Fatalf("make a client for %s: %v", user.Name, err)
	}
	return client.WithFieldValidation(cl, "Strict")
}
