// Package cluster is the command line's access to the API server: a client for the kinds that the commands show, reads
// that survive a restart of the server, and the error classes that decide exit codes and hints.
//
// Nothing is cached: every command sees what the server holds now. Several goroutines may use a Client.
package cluster

import (
	"fmt"
	"io"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	velerov1 "github.com/varvebackup/varve/api/velero/v1"
	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
)

// snapshotGroupVersion is that of CSI snapshots, which are read without types.
var snapshotGroupVersion = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}

// Requests per second, and at once: one command makes a handful.
const (
	qps   = 50
	burst = 100
)

// Client reads, writes and watches objects in the namespace that the user's flags and kubeconfig select.
type Client struct {
	client.WithWatch
	// Namespace is the selected namespace: -n, else the context's, else "default".
	Namespace string

	config *rest.Config
}

// Connect makes a client from kubectl's flags. It sends nothing yet. The server's warnings go to warnings, one per
// line.
func Connect(flags genericclioptions.RESTClientGetter, warnings io.Writer) (*Client, error) {
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig: %w", err)
	}
	config.QPS, config.Burst = qps, burst
	config.UserAgent = "varve"
	config.WarningHandler = rest.NewWarningWriter(warnings, rest.WarningWriterOptions{Deduplicate: true})
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: newMapper(), FieldValidation: "Strict"})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return &Client{WithWatch: c, Namespace: namespace, config: config}, nil
}

// Scheme returns a scheme with the kinds that the commands show.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, kubevirtv1.AddToScheme,
		backupv1.AddToScheme, harvesterv1.AddToScheme, velerov1.AddToScheme, velerov2.AddToScheme, longhornv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register kinds: %w", err)
		}
	}
	return scheme, nil
}

// newMapper returns the resources without asking the server: discovery at each start would cost more than the command
// itself.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{
		kubevirtv1.GroupVersion, backupv1.GroupVersion,
		harvesterv1.GroupVersion, velerov2.GroupVersion, velerov1.GroupVersion, snapshotGroupVersion,
		corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion, longhornv1.GroupVersion,
	})
	for _, k := range []string{"VirtualMachine", "VirtualMachineInstance", "VirtualMachineInstanceMigration"} {
		m.Add(kubevirtv1.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"VirtualMachineBackup", "VirtualMachineBackupTracker"} {
		m.Add(backupv1.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"VirtualMachineBackup", "VirtualMachineRestore", "ScheduleVMBackup"} {
		m.Add(harvesterv1.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"Event", "PersistentVolumeClaim", "Pod", "Secret", "ServiceAccount"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"DataUpload", "DataDownload"} {
		m.Add(velerov2.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"BackupStorageLocation", "BackupRepository"} {
		m.Add(velerov1.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	for _, k := range []string{"BackingImage", "BackupBackingImage", "Node", "InstanceManager", "Volume", "Replica"} {
		m.Add(longhornv1.GroupVersion.WithKind(k), meta.RESTScopeNamespace)
	}
	m.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	m.Add(batchv1.SchemeGroupVersion.WithKind("Job"), meta.RESTScopeNamespace)
	m.Add(snapshotGroupVersion.WithKind("VolumeSnapshot"), meta.RESTScopeNamespace)
	for _, k := range []string{"Namespace", "PersistentVolume"} {
		m.Add(corev1.SchemeGroupVersion.WithKind(k), meta.RESTScopeRoot)
	}
	return m
}
