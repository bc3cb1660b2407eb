package harvesterrestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/internal/controller/keep/stored"
	"github.com/varvebackup/varve/internal/definition"
	"github.com/varvebackup/varve/internal/reconcile"
)

// Kinds of references.
const (
	kindSecret    = "Secret"
	kindConfigMap = "ConfigMap"
)

// definitionRequest asks for what the machine refers to.
func definitionRequest(o *harvesterv1.VirtualMachineRestore) stored.Request {
	return stored.Request{
		Owner: o.UID, Name: o.Status.DefinitionDownload, Location: *o.Status.Location,
		SnapshotID: o.Status.VolumeRestores[0].SnapshotID, Namespace: o.Spec.VirtualMachineBackupNamespace,
	}
}

// decideReferences writes into the status which Secrets and ConfigMaps the machine gets, and under which names: what has
// the name of one of them and is another one stays, and the machine gets a copy under a name of its own.
func (r *reconciler) decideReferences(ctx context.Context, o *harvesterv1.VirtualMachineRestore, b *harvesterv1.VirtualMachineBackup) (waiting, refused string, err error) {
	if o.Status.DefinitionDownload == "" || len(o.Status.References) > 0 {
		return "", "", nil
	}
	answer, err := r.stored.Read(ctx, definitionRequest(o))
	switch {
	case err != nil || answer.Waiting != "" && answer.Failed == "":
		return answer.Waiting, "", err
	case answer.Failed != "":
		missing, err := r.findMissing(ctx, o.Namespace, b)
		if err != nil {
			return "", "", err
		}
		// In its own namespace, the machine has what has these names. In another one, that may be anybody's.
		if missing == "" && o.Namespace == b.Namespace {
			r.events.Eventf(o, nil, corev1.EventTypeWarning, "DefinitionUnreadable", "Restore",
				"%s. The machine gets the Secrets and ConfigMaps of their names that are there", answer.Failed)
			return "", "", nil
		}
		if missing == "" {
			return "", fmt.Sprintf("%s. Restore the machine into its own namespace %s", answer.Failed, b.Namespace), nil
		}
		return "", fmt.Sprintf("%s. The machine refers to %s in namespace %s: create these, and restore again",
			answer.Failed, missing, o.Namespace), nil
	}
	base := o.DeepCopy()
	for _, ref := range copyReferences(o, answer.Definition) {
		chosen, err := r.chooseName(ctx, o, ref)
		if err != nil {
			return "", "", err
		}
		o.Status.References = append(o.Status.References, chosen)
	}
	return "", "", r.writeStatus(ctx, base, o)
}

// chooseName says under which name the machine gets what it refers to.
func (r *reconciler) chooseName(ctx context.Context, o *harvesterv1.VirtualMachineRestore, wanted client.Object) (harvesterv1.RestoredReference, error) {
	ref := harvesterv1.RestoredReference{Kind: kindOf(wanted), Name: wanted.GetName(), RestoredAs: wanted.GetName()}
	have, err := r.findReference(ctx, wanted)
	switch {
	case err != nil:
		return ref, err
	case have == nil:
	case sameContent(have, wanted) && len(have.GetOwnerReferences()) == 0:
		ref.Found = true
	default: // it is another one, or goes with somebody else
		sum := sha256.Sum256([]byte(o.UID))
		end := "-" + hex.EncodeToString(sum[:5])
		name := o.Spec.Target.Name + "-" + wanted.GetName()
		name = name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(end))]
		ref.RestoredAs = strings.TrimRight(name, "-.") + end
	}
	return ref, nil
}

// completeReferences makes what the machine refers to, when it is there and does not run yet.
func (r *reconciler) completeReferences(ctx context.Context, o *harvesterv1.VirtualMachineRestore, vm machine) (waiting, refused string, err error) {
	if len(o.Status.References) == 0 {
		return "", "", nil
	}
	answer, err := r.stored.Read(ctx, definitionRequest(o))
	if err != nil || answer.Definition == nil {
		return answer.Waiting, answer.Failed, err
	}
	refused, err = r.makeReferences(ctx, o, answer.Definition, vm)
	return "", refused, err
}

// makeReferences makes the Secrets and ConfigMaps that the status names. Those that have a name of the machine's own go
// with it; the others may be other machines' as well.
func (r *reconciler) makeReferences(ctx context.Context, o *harvesterv1.VirtualMachineRestore, d *definition.Definition, vm machine) (refused string, err error) {
	wanted := map[string]client.Object{}
	for _, c := range copyReferences(o, d) {
		wanted[kindOf(c)+"/"+c.GetName()] = c
	}
	for _, ref := range o.Status.References {
		c := wanted[ref.Kind+"/"+ref.Name]
		if ref.Found || c == nil {
			continue
		}
		if ref.RestoredAs != ref.Name {
			c.SetName(ref.RestoredAs)
			c.SetOwnerReferences([]metav1.OwnerReference{ownerReference(vm)})
		}
		have, err := r.findReference(ctx, c)
		if err != nil {
			return "", err
		}
		if have != nil && sameContent(have, c) {
			continue
		}
		if refused, err := r.children.Make(ctx, o.UID, c); refused != "" || err != nil {
			return refused, err
		}
	}
	return "", nil
}

// deleteReferences deletes the Secrets and ConfigMaps of a restore that has made no machine.
func (r *reconciler) deleteReferences(ctx context.Context, o *harvesterv1.VirtualMachineRestore) error {
	for _, ref := range o.Status.References {
		if ref.Found {
			continue
		}
		c := emptyReference(ref.Kind, o.Namespace, ref.RestoredAs)
		if err := r.children.Delete(ctx, o.UID, c); err != nil {
			return err
		}
	}
	return nil
}

// findMissing names what the machine in the backup refers to and what is not in a namespace, or "".
func (r *reconciler) findMissing(ctx context.Context, namespace string, b *harvesterv1.VirtualMachineBackup) (string, error) {
	secrets, configMaps, err := definition.References(b.Status.Source.Spec)
	if err != nil {
		return "", err
	}
	var missing []string
	for kind, names := range map[string][]string{kindSecret: secrets, kindConfigMap: configMaps} {
		for _, name := range names {
			have, err := r.findReference(ctx, emptyReference(kind, namespace, name))
			if err != nil {
				return "", err
			}
			if have == nil {
				missing = append(missing, kind+" "+name)
			}
		}
	}
	return strings.Join(missing, ", "), nil
}

// findReference returns the object that has the kind and the name of another one, or nil.
func (r *reconciler) findReference(ctx context.Context, like client.Object) (client.Object, error) {
	have := emptyReference(kindOf(like), like.GetNamespace(), like.GetName())
	return reconcile.Find(ctx, r.live, client.ObjectKeyFromObject(like), have)
}

// copyReferences returns the Secrets and ConfigMaps of a definition as the restore's namespace gets them.
func copyReferences(o *harvesterv1.VirtualMachineRestore, d *definition.Definition) []client.Object {
	meta := func(name string, labels, annotations map[string]string) metav1.ObjectMeta {
		m := metav1.ObjectMeta{
			Namespace: o.Namespace, Name: name, Labels: maps.Clone(labels),
			Annotations: maps.Clone(annotations),
		}
		maps.DeleteFunc(m.Labels, func(key, _ string) bool { return isClusters(key) })
		maps.DeleteFunc(m.Annotations, func(key, _ string) bool { return isClusters(key) })
		return m
	}
	var all []client.Object
	for _, s := range d.Secrets {
		all = append(all, &corev1.Secret{ObjectMeta: meta(s.Name, s.Labels, s.Annotations), Type: s.Type, Data: s.Data})
	}
	for _, c := range d.ConfigMaps {
		all = append(all, &corev1.ConfigMap{
			ObjectMeta: meta(c.Name, c.Labels, c.Annotations), Data: c.Data, BinaryData: c.BinaryData,
		})
	}
	return all
}

func emptyReference(kind, namespace, name string) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	if kind == kindSecret {
		return &corev1.Secret{ObjectMeta: meta}
	}
	return &corev1.ConfigMap{ObjectMeta: meta}
}

func kindOf(o client.Object) string {
	if _, ok := o.(*corev1.Secret); ok {
		return kindSecret
	}
	return kindConfigMap
}

// sameContent says whether two Secrets or two ConfigMaps have the same data.
func sameContent(a, b client.Object) bool {
	same := func(a, b map[string][]byte) bool {
		return maps.EqualFunc(a, b, func(a, b []byte) bool { return string(a) == string(b) })
	}
	switch a := a.(type) {
	case *corev1.Secret:
		b, ok := b.(*corev1.Secret)
		return ok && same(a.Data, b.Data)
	case *corev1.ConfigMap:
		b, ok := b.(*corev1.ConfigMap)
		return ok && maps.Equal(a.Data, b.Data) && same(a.BinaryData, b.BinaryData)
	}
	return false
}

// otherNames returns the names that what the machine refers to has in the restore's namespace, by their names in the
// backup.
func otherNames(o *harvesterv1.VirtualMachineRestore, kind string) map[string]string {
	names := map[string]string{}
	for _, ref := range o.Status.References {
		if ref.Kind == kind {
			names[ref.Name] = ref.RestoredAs
		}
	}
	return names
}

// definitionName is the name of the DataDownload that reads the definition. No volume has a dot in its name.
func definitionName(r *harvesterv1.VirtualMachineRestore) string {
	return strings.TrimSuffix(downloadName(r, ""), "-") + ".definition"
}
