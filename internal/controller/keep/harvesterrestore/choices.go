package harvesterrestore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// choices are what the user wants other than it was backed up, as the annotations of a restore say.
type choices struct {
	// classes are the new StorageClasses by the old ones, and anyClass that of every other one, or "".
	classes  map[string]string
	anyClass string
	// without are the volumes that the restored machine does not have.
	without []string
	// sizes are those of larger claims by the volumes.
	sizes map[string]resource.Quantity
}

// parseChoices reads the annotations.
func parseChoices(r *harvesterv1.VirtualMachineRestore) (*choices, error) {
	classes, err := parsePairs(r, harvesterv1.AnnotationStorageClassMap, "old=new,old2=new2")
	if err != nil {
		return nil, err
	}
	c := &choices{classes: classes, without: excludedByUser(r), sizes: map[string]resource.Quantity{}}
	sizes, err := parsePairs(r, harvesterv1.AnnotationDiskSizes, "volume=20Gi,volume2=1Ti")
	if err != nil {
		return nil, err
	}
	for volume, text := range sizes {
		if c.sizes[volume], err = resource.ParseQuantity(text); err != nil {
			return nil, fmt.Errorf("the annotation %s has %.80q as the size of %.80q: %w",
				harvesterv1.AnnotationDiskSizes, text, volume, err)
		}
	}
	for _, old := range []string{"", "*"} {
		if name, has := classes[old]; has {
			if c.anyClass != "" {
				return nil, fmt.Errorf("the annotation %s names a StorageClass for every other one twice",
					harvesterv1.AnnotationStorageClassMap)
			}
			c.anyClass = name
			delete(classes, old)
		}
	}
	return c, nil
}

// excludedByUser returns the volumes that the user leaves out.
func excludedByUser(r *harvesterv1.VirtualMachineRestore) []string {
	return strings.FieldsFunc(r.Annotations[harvesterv1.AnnotationExcludeVolumes],
		func(c rune) bool { return c == ',' || c == ' ' })
}

// parsePairs reads an annotation of the form key=value,key2=value2.
func parsePairs(r *harvesterv1.VirtualMachineRestore, annotation, form string) (map[string]string, error) {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(r.Annotations[annotation], ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, both := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if _, twice := pairs[key]; !both || value == "" || twice {
			return nil, fmt.Errorf("the annotation %s is not of the form %s: see %.80q", annotation, form, pair)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// checkNames says which name in the choices stands for nothing that the backup or the cluster has. known are the cluster's
// StorageClasses.
func (c *choices) checkNames(b *harvesterv1.VirtualMachineBackup, known map[string]bool) error {
	var old []string
	for i := range b.Status.VolumeBackups {
		old = append(old, ptr.Deref(b.Status.VolumeBackups[i].PersistentVolumeClaim.Spec.StorageClassName, ""))
	}
	unknown := func(name string) bool { _, has := known[name]; return !has }
	for _, name := range slices.Sorted(maps.Keys(c.classes)) {
		switch to := c.classes[name]; {
		case !slices.Contains(old, name):
			return fmt.Errorf("the annotation %s names StorageClass %.80q, and no disk has it",
				harvesterv1.AnnotationStorageClassMap, name)
		case unknown(to):
			return errNoClass(to)
		}
	}
	if c.anyClass != "" && unknown(c.anyClass) {
		return errNoClass(c.anyClass)
	}
	return c.checkVolumes(b)
}

// checkVolumes says which volume in the choices the backup does not have.
func (c *choices) checkVolumes(b *harvesterv1.VirtualMachineBackup) error {
	var stored, others []string
	for i := range b.Status.VolumeBackups {
		stored = append(stored, b.Status.VolumeBackups[i].VolumeName)
	}
	for _, v := range b.Status.ExcludedVolumes {
		others = append(others, v.Name)
	}
	for _, name := range c.without {
		if !slices.Contains(stored, name) && !slices.Contains(others, name) {
			return fmt.Errorf("the annotation %s names %.80q, and the machine has no such volume",
				harvesterv1.AnnotationExcludeVolumes, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.sizes)) {
		if !slices.Contains(stored, name) || slices.Contains(c.without, name) {
			return fmt.Errorf("the annotation %s names %.80q, and no such disk is restored",
				harvesterv1.AnnotationDiskSizes, name)
		}
	}
	if len(stored) > 0 && !slices.ContainsFunc(stored, func(name string) bool {
		return !slices.Contains(c.without,
			name)
	}) {
		return fmt.Errorf("the annotation %s leaves out every disk: keep one", harvesterv1.AnnotationExcludeVolumes)
	}
	return nil
}

// addExcluded adds the volumes that the user leaves out to those that the restored machine does not have.
func (c *choices) addExcluded(volumes []harvesterv1.ExcludedVolume) []harvesterv1.ExcludedVolume {
	for _, name := range c.without {
		if !slices.ContainsFunc(volumes, func(v harvesterv1.ExcludedVolume) bool { return v.Name == name }) {
			volumes = append(volumes, harvesterv1.ExcludedVolume{
				Name: name, Reason: harvesterv1.ExcludedByUser,
				Message: "the annotation " + harvesterv1.AnnotationExcludeVolumes + " names it",
			})
		}
	}
	return volumes
}

func errNoClass(name string) error {
	return fmt.Errorf("the annotation %s names StorageClass %.80q, which does not exist in this cluster",
		harvesterv1.AnnotationStorageClassMap, name)
}

// applyTo changes what is made for a disk.
func (c *choices) applyTo(v *harvesterv1.VolumeRestore, known map[string]bool) error {
	spec := &v.PersistentVolumeClaim.Spec
	if size, has := c.sizes[v.VolumeName]; has {
		if least := spec.Resources.Requests.Storage(); size.Cmp(*least) < 0 {
			return fmt.Errorf("the annotation %s has %s as its size, and its claim needs %s",
				harvesterv1.AnnotationDiskSizes,
				size.String(), least.String())
		}
		spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	}
	old := ptr.Deref(spec.StorageClassName, "")
	to, mapped := c.classes[old]
	if !mapped && c.anyClass != "" {
		to, mapped = c.anyClass, true
	}
	if mapped {
		spec.StorageClassName = &to
		if to != old {
			spec.VolumeAttributesClassName = nil // it is of the old class's driver
		}
		return nil
	}
	if _, has := known[old]; !has && old != "" {
		return errors.New("StorageClass " + old + " does not exist in this cluster: say in the annotation " +
			harvesterv1.AnnotationStorageClassMap + ", as " + old + "=NEW, which one is to be used")
	}
	return nil
}
