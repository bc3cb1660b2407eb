//go:build controlplane

package admission

import (
	"context"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

func TestImages_areMadeInVarvesNamespace(t *testing.T) {
	t.Parallel()
	admin := cluster.Client(t, controlplane.Admin)
	const elsewhere = "Varve serves images in namespace varve; create the object there"
	for _, ns := range []string{cluster.Namespace(t), controlplane.SystemNamespace} {
		m := gen.Meta(ns, "images-"+ns)
		volume := longhornv1.VolumeSpec{Size: 1 << 30, NumberOfReplicas: 1}
		for _, o := range []client.Object{
			&longhornv1.BackingImage{ObjectMeta: m, Spec: longhornv1.BackingImageSpec{SourceType: longhornv1.SourceUpload}},
			&longhornv1.BackupBackingImage{
				ObjectMeta: m, Spec: longhornv1.BackupBackingImageSpec{BackingImage: "golden"},
			},
			&longhornv1.Node{ObjectMeta: m}, &longhornv1.InstanceManager{ObjectMeta: m},
			&longhornv1.Volume{ObjectMeta: m, Spec: volume},
			&longhornv1.Replica{ObjectMeta: m, Spec: longhornv1.ReplicaSpec{VolumeName: "v", VolumeSize: 1 << 30}},
		} {
			err := admin.Create(t.Context(), o, client.DryRunAll)
			if ns == controlplane.SystemNamespace {
				admitted(t, err)
				continue
			}
			refused(t, err, elsewhere)
		}
	}
}

// imageUser returns the client of a user with a role in Varve's namespace, which lets it list images. prefix begins the
// user's name.
func imageUser(t *testing.T, prefix, role string) client.Client {
	t.Helper()
	user := controlplane.User{Name: prefix + "-" + role}.Restrict()
	bindRole(t, controlplane.SystemNamespace, role, user)
	c := cluster.Client(t, user)
	controlplane.Eventually(t, func() error { // The API server learns of bindings from its own watches.
		return c.List(t.Context(), &longhornv1.BackingImageList{}, client.InNamespace(controlplane.SystemNamespace))
	})
	return c
}

// A user who may upload images cannot make Varve read a volume, a restore point or an address inside the cluster.
func TestImages_ofOtherSourcesTakeARight(t *testing.T) {
	t.Parallel()
	const ns = controlplane.SystemNamespace
	admitted(t, cluster.InstallRoles(t.Context()))
	uploader, admin := imageUser(t, "source", "varve-image-upload"), imageUser(t, "source", "varve-admin")
	for source, parameters := range map[longhornv1.SourceType]map[string]longhornv1.ParameterValue{
		longhornv1.SourceUpload:   nil,
		longhornv1.SourceDownload: {longhornv1.ParameterURL: "http://10.0.0.1/latest/meta-data"},
		longhornv1.SourceExport:   {longhornv1.ParameterVolumeName: "pvc-1"},
		longhornv1.SourceClone:    {longhornv1.ParameterBackingImage: "golden"},
		longhornv1.SourceRestore: {
			longhornv1.ParameterLocation: "default", longhornv1.ParameterSnapshotID: "varve1.disk.1",
		},
	} {
		image := &longhornv1.BackingImage{
			ObjectMeta: gen.Meta(ns, "source-"+string(source)),
			Spec:       longhornv1.BackingImageSpec{SourceType: source, SourceParameters: parameters},
		}
		admitted(t, admin.Create(t.Context(), image.DeepCopy(), client.DryRunAll))
		err := uploader.Create(t.Context(), image.DeepCopy(), client.DryRunAll)
		if source == longhornv1.SourceUpload {
			admitted(t, err)
			continue
		}
		refused(t, err, "you may only create images with sourceType upload", "use-source")
	}
}

// An image without sourceParameters can be written again, and its source stays what it is.
func TestImages_sourceIsFixed(t *testing.T) {
	t.Parallel()
	admin := cluster.Client(t, controlplane.Admin)
	type parameters map[string]longhornv1.ParameterValue
	create := func(name string, source longhornv1.SourceType, parameters parameters) *longhornv1.BackingImage {
		image := &longhornv1.BackingImage{
			ObjectMeta: gen.Meta(controlplane.SystemNamespace, name),
			Spec:       longhornv1.BackingImageSpec{SourceType: source, SourceParameters: parameters},
		}
		admitted(t, admin.Create(t.Context(), image))
		t.Cleanup(func() { _ = admin.Delete(t.Context(), image) })
		return image
	}
	url := parameters{longhornv1.ParameterURL: "http://images.lan/a.img"}
	for name, image := range map[string]*longhornv1.BackingImage{
		"upload": create("fixed-upload", longhornv1.SourceUpload, nil),
		"url":    create("fixed-url", longhornv1.SourceDownload, url),
	} {
		image.Spec.MinNumberOfCopies = 2
		admitted(t, admin.Update(t.Context(), image))
		t.Log(name)
		if image.Spec.SourceParameters == nil {
			continue
		}
		image.Spec.SourceParameters[longhornv1.ParameterURL] = "http://images.lan/b.img"
		refused(t, admin.Update(t.Context(), image.DeepCopy(), client.DryRunAll), "cannot change: make another image")
	}
	for source, words := range map[longhornv1.SourceType]string{
		longhornv1.SourceDownload: "sourceParameters.url must be an address",
		longhornv1.SourceExport:   "sourceParameters.volume-name must name the volume",
		longhornv1.SourceClone:    "sourceParameters.backing-image must name the image",
	} {
		refused(t, admin.Create(t.Context(), &longhornv1.BackingImage{
			ObjectMeta: gen.Meta(controlplane.SystemNamespace, "fixed"), Spec: longhornv1.BackingImageSpec{SourceType: source},
		}), words)
	}
}

// A user who may only get images, upload them or forward ports cannot make a token that a store takes for a download.
func TestImages_downloadTakesARight(t *testing.T) {
	t.Parallel()
	const ns = controlplane.SystemNamespace
	admitted(t, cluster.InstallRoles(t.Context()))
	admin := cluster.Client(t, controlplane.Admin)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: download.ServiceAccount}}
	another := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "another"}}
	for _, a := range []*corev1.ServiceAccount{account, another} {
		admitted(t, admin.Create(t.Context(), a))
		t.Cleanup(func() { _ = admin.Delete(context.Background(), a) })
	}
	request := func() *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{download.Audience}, ExpirationSeconds: ptr.To[int64](600),
		}}
	}
	for _, role := range []string{"varve-image-upload", "varve-admin", "varve-image-download"} {
		c := imageUser(t, "download", role)
		err := c.SubResource("token").Create(t.Context(), account.DeepCopy(), request())
		if role != "varve-image-download" {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s may make tokens for downloads: %v", role, err)
			}
			continue
		}
		admitted(t, err)
		if err := c.SubResource("token").Create(t.Context(), another.DeepCopy(), request()); !apierrors.IsForbidden(err) {
			t.Errorf("%s may make tokens of another account: %v", role, err)
		}
	}
}
