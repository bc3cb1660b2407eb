package harvesterrestore

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
)

// choices are what the user wants other than it was backed up, as the annotations of a restore say.
type choices struct {
	// classes are the new StorageClasses by the old ones, and anyClass that of every other one, or "".
	classes  map[string]string
	anyClass string
}

// parseChoices reads the annotations.
func parseChoices(r *harvesterv1.VirtualMachineRestore) (*choices, error) {
	classes, err := parsePairs(r, harvesterv1.AnnotationStorageClassMap, "old=new,old2=new2")
	if err != nil {
		return nil, err
	}
	c := &choices{classes: classes}
	for _, old := range []string{"", "*"} {
		if name, has := classes[old]; has {
			if c.anyClass != "" {
				return nil, fmt.Errorf("the annotation %s names a StorageClass for every other one twice", harvesterv1.AnnotationStorageClassMap)
			}
			c.anyClass = name
			delete(classes, old)
		}
	}
	return c, nil
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

// check says which name in the choices stands for nothing that the backup or the cluster has. known are the cluster's
// StorageClasses.
func (c *choices) check(b *harvesterv1.VirtualMachineBackup, known map[string]bool) error {
	var old []string
	for i := range b.Status.VolumeBackups {
		old = append(old, ptr.Deref(b.Status.VolumeBackups[i].PersistentVolumeClaim.Spec.StorageClassName, ""))
	}
	unknown := func(name string) bool { _, has := known[name]; return !has }
	for _, name := range slices.Sorted(maps.Keys(c.classes)) {
		switch to := c.classes[name]; {
		case !slices.Contains(old, name):
			return fmt.Errorf("the annotation %s names StorageClass %.80q, and no disk has it", harvesterv1.AnnotationStorageClassMap, name)
		case unknown(to):
			return errNoClass(to)
		}
	}
	if c.anyClass != "" && unknown(c.anyClass) {
		return errNoClass(c.anyClass)
	}
	return nil
}

func errNoClass(name string) error {
	return fmt.Errorf("the annotation %s names StorageClass %.80q, which does not exist in this cluster",
		harvesterv1.AnnotationStorageClassMap, name)
}

// apply changes what is made for a disk.
func (c *choices) apply(v *harvesterv1.VolumeRestore, known map[string]bool) error {
	spec := &v.PersistentVolumeClaim.Spec
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
