// Command kube is a whole Kubernetes in one binary: etcd, the control plane, the node's agents and kubectl.
//
// The name by which the binary is called (a symlink, as with busybox) selects the program to run. If that name is no
// program's, the first argument selects it. One binary links the shared Kubernetes code once: about 150 MB rather
// than about 500 MB for seven binaries, and one link instead of seven.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // time zones of CronJobs, on a machine without tzdata

	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // exec credential plugins, for kubectl
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metric on /metrics
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps each program name to the function that runs it and returns the exit code. Commands are constructed
// only when chosen, because constructing one registers its flags and metrics in globals.
var programs = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllermanager.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() int { return cli.Run(kubeproxy.NewProxyCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
}

func main() {
	args, err := resolveProgram(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Args = args // the programs read os.Args themselves, some more than once
	os.Exit(programs[args[0]]())
}

// resolveProgram returns the chosen program's arguments, with its bare name first.
func resolveProgram(args []string) ([]string, error) {
	if name := filepath.Base(args[0]); programs[name] != nil {
		return append([]string{name}, args[1:]...), nil
	}
	if len(args) > 1 && programs[args[1]] != nil {
		return args[1:], nil
	}
	names := make([]string, 0, len(programs))
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("usage: kube PROGRAM [ARGS...] with PROGRAM one of: %s", strings.Join(names, " "))
}

// runEtcd returns after a clean stop. On failure etcd calls os.Exit.
func runEtcd() int {
	etcdmain.Main(os.Args)
	return 0
}

// runKubectl follows cmd/kubectl: kubectl prints its own errors and chooses the matching exit code.
func runKubectl() int {
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) // as upstream: the flag parser reports a bad value later
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
