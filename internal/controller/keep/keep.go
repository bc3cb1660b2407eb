// Package keep has the controllers of whole machines: VirtualMachineBackup, VirtualMachineRestore and
// ScheduleVMBackup of harvesterhci.io, and BackupPolicy of varvebackup.io. They speak to machines through the kinds of KubeVirt alone, and to storage
// through DataUploads and DataDownloads.
package keep

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/keep/backuppolicy"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterbackup"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterrestore"
	"github.com/varvebackup/varve/internal/controller/keep/harvesterschedule"
	"github.com/varvebackup/varve/internal/controller/keep/requeststart"
	"github.com/varvebackup/varve/internal/controller/keep/subresourcestart"
)

// Options are what Setup needs besides the manager. Namespace has no default.
type Options struct {
	// Namespace is Varve's own.
	Namespace string
	// BesideKubeVirt says that machines run under KubeVirt.
	BesideKubeVirt bool
	// Clock tells the time. Default: the machine's.
	Clock clock.PassiveClock
	// ControllerSuffix distinguishes the controllers of two managers in one process, for example in tests.
	ControllerSuffix string
}

// Setup adds the controllers to mgr. On a cluster whose kinds of that group are Harvester's, which have no status
// subresource, it adds none: Harvester serves them.
func Setup(mgr ctrl.Manager, o Options) error {
	ours, err := servesStatus(mgr)
	if err != nil {
		return err
	}
	if !ours {
		mgr.GetLogger().Info("whole machines are not backed up: the kinds of harvesterhci.io are not Varve's")
		return nil
	}
	if err := harvesterbackup.Setup(mgr, harvesterbackup.Options{
		Namespace: o.Namespace, BesideKubeVirt: o.BesideKubeVirt, Clock: o.Clock,
		ControllerSuffix: o.ControllerSuffix,
	}); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	start, err := chooseStarter(mgr, o.BesideKubeVirt)
	if err != nil {
		return err
	}
	if err := harvesterrestore.Setup(mgr, harvesterrestore.Options{
		StartMachine:     start,
		Clock:            o.Clock,
		ControllerSuffix: o.ControllerSuffix,
	}); err != nil {
		return fmt.Errorf("restores: %w", err)
	}
	if err := harvesterschedule.Setup(mgr, harvesterschedule.Options{
		Namespace: o.Namespace, Clock: o.Clock,
		ControllerSuffix: o.ControllerSuffix,
	}); err != nil {
		return fmt.Errorf("schedules: %w", err)
	}
	if err := backuppolicy.Setup(mgr, backuppolicy.Options{
		Clock:            o.Clock,
		ControllerSuffix: o.ControllerSuffix,
	}); err != nil {
		return fmt.Errorf("policies: %w", err)
	}
	return nil
}

// chooseStarter returns what starts a machine that starts on request.
func chooseStarter(mgr ctrl.Manager, besideKubeVirt bool) (harvesterrestore.StartFunc, error) {
	if besideKubeVirt {
		return subresourcestart.New(mgr.GetConfig(), mgr.GetHTTPClient())
	}
	return requeststart.New(mgr.GetClient()), nil
}

// servesStatus says whether the kinds are there, and have a status subresource.
func servesStatus(mgr ctrl.Manager) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return false, fmt.Errorf("make a client for discovery: %w", err)
	}
	list, err := d.ServerResourcesForGroupVersion(harvesterv1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the kinds of %s: %w", harvesterv1.GroupVersion, err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
	}
	return has("virtualmachinebackups/status") && has("virtualmachinerestores/status") &&
		has("schedulevmbackups/status"), nil
}
