package virtualmachineinstance

import (
	"encoding/json"
	"strconv"

	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
)

// annotationSkipHooks keeps freezeHooks away: true on an instance, or on the KubeVirt object for all instances that do
// not have the annotation. KubeVirt has it, too.
const annotationSkipHooks = "kubevirt.io/skip-backup-hooks"

// hookTimeout is how long Velero waits for a hook. It is longer than virt-freezer takes.
const hookTimeout = "60s"

// freezeHooks returns the annotations that have Velero freeze the guest before it backs up the pod's volumes and thaw
// it afterwards: those of KubeVirt's launcher pods. They are the pod's for its whole life.
func freezeHooks(instance *kubevirtv1.VirtualMachineInstance, configuration *kubevirtv1.KubeVirt) map[string]string {
	skip, ok := instance.Annotations[annotationSkipHooks]
	if !ok && configuration != nil {
		skip = configuration.Annotations[annotationSkipHooks]
	}
	// KubeVirt, too, takes what is not a boolean for false.
	if skip, err := strconv.ParseBool(skip); err == nil && skip {
		return nil
	}
	hooks := map[string]string{}
	for when, action := range map[string]string{"pre": "--freeze", "post": "--unfreeze"} {
		command, err := json.Marshal([]string{"/usr/bin/virt-freezer", action, "--name", instance.Name, "--namespace", instance.Namespace})
		if err != nil {
			panic(err) // strings can always be encoded
		}
		prefix := when + ".hook.backup.velero.io/"
		hooks[prefix+"container"], hooks[prefix+"command"], hooks[prefix+"timeout"] = computeContainer, string(command), hookTimeout
	}
	return hooks
}
