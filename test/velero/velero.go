// Package velero gives tests a real, unmodified Velero: its server, which runs beside the cluster and not in a pod, and its CLI.
//
//	v := velero.Start(t, velero.Options{Kubeconfig: kubeconfig, Store: server.Endpoint, Prefix: "cluster-a"})
//	v.Backup(t, "b1", append(velero.MoveData("varve"), "--include-namespaces", "app")...)
//	v.WaitForBackup(t, "b1", velero.Completed, 5*time.Minute)
//	…
//	v.Restore(t, "r1", "b1", "--namespace-mappings", "app:app2")
//	v.WaitForRestore(t, "r1", velero.Completed, 5*time.Minute)
//	v.DeleteBackup(t, "b1", time.Minute)
//
// Start installs what `velero install` would: the CRDs, the namespace, a BackupStorageLocation with its credentials, and
// the Deployment `velero`, which the CLI looks for and which has no replicas. It can be called again for the same cluster. The CRDs of
// VolumeSnapshots, which the server needs, come with it; the snapshot controller and a driver do not.
//
// Each server has directories of its own, so that several may run on one machine, for other clusters or namespaces. A server ends with
// the test, or with the process of the test, and so do its plugins. If the test fails, the server's log is printed. The objects
// stay in the cluster, unless the test calls Remove.
//
// The programs come from the directory VARVE_VELERO, or from build/velero, which `make velero` fills.
package velero

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/test/checkout"
	"github.com/varvebackup/varve/test/process"
	"github.com/varvebackup/varve/test/s3"
	"github.com/varvebackup/varve/test/wait"
)

// Location is the name of the server's BackupStorageLocation, the default one.
const Location = "default"

// Options say which cluster a server serves, and where its backups go.
type Options struct {
	// Kubeconfig is the path of a file that gives all rights in the cluster.
	Kubeconfig string
	// Namespace is Velero's own; "" means "velero".
	Namespace string
	// Store holds the backups, in its bucket. Its address must be reachable for the test and for whatever else reads the location.
	Store s3.Endpoint
	// Prefix is the folder of the bucket that is this cluster's; "" means the whole bucket.
	Prefix string
	// Environment is added to the server's, as in "NAME=value".
	Environment []string
	// Arguments are added to the server's, and override those of this package.
	Arguments []string
}

// Server is a Velero server that is running, except between Stop and Restart. Many goroutines may call its methods.
type Server struct {
	Options

	cluster      client.Client
	program      string
	home, dir    string // of the CLI, and of the server
	log          *os.File
	mu           sync.Mutex
	process      *process.Process // nil while it is stopped
	crds, plugin string
}

// Start installs Velero, starts its server, and returns when the location is Available.
func Start(tb testing.TB, options Options) *Server {
	tb.Helper()
	s, err := prepare(tb, options)
	if err != nil {
		tb.Fatalf("start Velero: %v", err)
	}
	if err := s.install(tb.Context()); err != nil {
		tb.Fatalf("install Velero: %v", err)
	}
	s.Restart(tb)
	return s
}

// prepare makes everything on this machine except the process. When the test ends, it ends the process.
func prepare(tb testing.TB, options Options) (*Server, error) {
	tb.Helper()
	root, err := find()
	if err != nil {
		return nil, err
	}
	if options.Namespace == "" {
		options.Namespace = "velero"
	}
	if options.Kubeconfig, err = filepath.Abs(options.Kubeconfig); err != nil {
		return nil, err
	}
	dir := tb.TempDir()
	s := &Server{
		Options: options,
		program: filepath.Join(root, "bin", "velero"), plugin: filepath.Join(root, "bin", "velero-plugin-for-aws"), crds: filepath.Join(root, "crds"),
		home: filepath.Join(dir, "home"), dir: filepath.Join(dir, "server"),
	}
	if s.cluster, err = connect(options.Kubeconfig); err != nil {
		return nil, err
	}
	for _, d := range []string{s.home, s.dir, s.pluginDirectory(), s.temporaryDirectory()} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := os.Symlink(s.plugin, filepath.Join(s.pluginDirectory(), filepath.Base(s.plugin))); err != nil {
		return nil, err
	}
	if s.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	tb.Cleanup(func() { s.end(tb) })
	return s, nil
}

// pluginDirectory holds the plugin and nothing else: the server runs everything that it finds there.
func (s *Server) pluginDirectory() string { return filepath.Join(s.dir, "plugins") }

// temporaryDirectory is the server's alone: it writes the credentials of locations to a name that depends on their namespace only.
func (s *Server) temporaryDirectory() string { return filepath.Join(s.dir, "tmp") }

func connect(kubeconfig string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = -1, -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// Restart starts the server, and returns when it has found its location Available. It stops a running server first.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(tb)
	p, err := process.Start(s.program, s.serverArguments(), s.serverEnvironment(), s.log)
	if err != nil {
		tb.Fatalf("start the Velero server: %v", err)
	}
	s.process = p
	started := time.Now()
	err = wait.For(context.WithoutCancel(tb.Context()), time.Minute, "the location to be Available", func(ctx context.Context) (bool, string, error) {
		if ended, how := p.Ended(); ended {
			return false, "", fmt.Errorf("the server ended: %w", how)
		}
		return s.available(ctx, started)
	})
	if err != nil {
		tb.Fatalf("start the Velero server: %v", err)
	}
}

func (s *Server) serverArguments() []string {
	return append([]string{
		"server", "--plugin-dir", s.pluginDirectory(),
		"--features", "EnableCSI", // without it the server takes no snapshots, and does not say so
		"--metrics-address", "127.0.0.1:0", "--profiler-address", "",
		"--log-format", "text",
		// A test waits for each of these.
		"--item-operation-sync-frequency", "1s", "--store-validation-frequency", "2s", "--backup-sync-period", "5s",
	}, s.Arguments...)
}

func (s *Server) serverEnvironment() []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + s.temporaryDirectory(),
		"KUBECONFIG=" + s.Kubeconfig, "VELERO_NAMESPACE=" + s.Namespace,
		"CSI_SNAPSHOT_EARLY_FREQUENT_POLLING=true", // every second instead of every five
	}, s.Environment...)
}

// Stop ends the server as a kubelet does: SIGTERM, and SIGKILL if that does not help.
func (s *Server) Stop(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		tb.Fatal("the Velero server is not running")
	}
	s.stop(tb)
}

// stop does nothing if the server is not running.
func (s *Server) stop(tb testing.TB) {
	tb.Helper()
	if s.process == nil {
		return
	}
	s.process.Terminate(10 * time.Second)
	s.process.Kill()
	s.process = nil
}

// Kill kills the server and its plugins with SIGKILL, and returns when the server is dead.
func (s *Server) Kill(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		tb.Fatal("the Velero server is not running")
	}
	s.process.Kill()
	s.process = nil
}

// end kills the running server, whose work nobody needs any more, and prints the log if the test failed.
func (s *Server) end(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.process.Kill()
		s.process = nil
	}
	if tb.Failed() {
		tb.Logf("log of the Velero server in namespace %s:\n%s", s.Namespace, tail(s.log))
	}
	if err := s.log.Close(); err != nil {
		tb.Errorf("close the log: %v", err)
	}
}

// find returns the directory with the programs and the CRDs.
func find() (string, error) {
	dir := os.Getenv("VARVE_VELERO")
	if dir == "" {
		root, err := checkout.Root()
		if err != nil {
			return "", fmt.Errorf("%w; or set VARVE_VELERO", err)
		}
		dir = filepath.Join(root, "build", "velero")
	}
	for _, name := range []string{"bin/velero", "bin/velero-plugin-for-aws", "crds"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("%w: run `make velero`, or set VARVE_VELERO", err)
		}
	}
	return filepath.Abs(dir)
}
