//go:build controlplane

package virtualmachineexport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/controller/backup/exportproxy"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/test/controlplane"
	"github.com/varvebackup/varve/test/gen"
)

var cluster *controlplane.Cluster

func TestMain(m *testing.M) { controlplane.Main(m, &cluster) }

// TestControlPlane runs every test that needs the API server, after it has set up what they share.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	if err := cluster.InstallRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]func(*world){
		"a claim's export":                    claimsLife,
		"a machine's export":                  machinesLife,
		"a backup's export":                   backupsLife,
		"a backup that is not in pull mode":   pushBackup,
		"a claim that is not ready":           claimNotReady,
		"a claim in use":                      claimInUse,
		"a pod that ends":                     podEnds,
		"a pod that is stuck":                 podStuck,
		"a token that the user names":         namedToken,
		"somebody else's objects":             foreignObjects,
		"an export made again":                madeAgain,
		"the time is up":                      timeIsUp,
		"more time":                           moreTime,
		"the feature gate":                    featureGate,
		"certificates and authorities rotate": rotation,
		"a Secret and a Service damaged":      damagedChildren,
		"a refusal":                           refusal,
		"everything goes with the export":     everythingIsOwned,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t))
		})
	}
}

// world is one test's namespace with its own configuration and its own controller, which acts with the roles of
// deploy/rbac. The namespace admits only pods that are as restricted as Kubernetes knows. The test plays the user, the
// kubelet and the garbage collector.
type world struct {
	*testing.T
	ns        string
	proxyHost string
	// certifiesProxy says that the controller of the proxy's certificate runs, too.
	certifiesProxy bool
	clock          *testclock.FakePassiveClock
	user, admin    client.Client
	stop           func()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := prepareWorld(t, "exports.example.org")
	w.start()
	return w
}

// newWorldBehind returns a world whose export proxy has an address and gets its certificate.
func newWorldBehind(t *testing.T, proxyHost string) *world {
	t.Helper()
	w := prepareWorld(t, proxyHost)
	w.certifiesProxy = true
	w.start()
	return w
}

// prepareWorld returns a world without its controller.
func prepareWorld(t *testing.T, proxyHost string) *world {
	t.Helper()
	w := &world{
		T: t, proxyHost: proxyHost, ns: cluster.Namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}),
		clock: testclock.NewFakePassiveClock(time.Now()), user: cluster.Client(t, controlplane.Plain), admin: cluster.Client(t, controlplane.Admin),
	}
	kv := controlplane.DefaultKubeVirt()
	kv.Namespace = w.ns
	w.create(kv)
	return w
}

func (w *world) start() {
	w.Helper()
	mgr := cluster.Manager(w.T, controlplane.Controller.Restrict(), func(o *ctrl.Options) {
		o.Cache.DefaultNamespaces = map[string]cache.Config{w.ns: {}}
		o.Cache.ByObject = map[client.Object]cache.ByObject{
			&corev1.Pod{}:     {Label: labels.SelectorFromSet(labels.Set{layout.LabelApp: AppExporter})},
			&corev1.Service{}: {Label: labels.SelectorFromSet(labels.Set{layout.LabelApp: AppExporter})},
		}
	})
	err := Setup(mgr, Options{
		Configuration: types.NamespacedName{Namespace: w.ns, Name: layout.Configuration}, Image: Image{Name: "varve:test"},
		ProxyHost: w.proxyHost, Clock: w.clock,
	})
	if err == nil && w.certifiesProxy {
		err = exportproxy.Setup(mgr, exportproxy.Options{Namespace: w.ns, Host: w.proxyHost, AuthoritySecret: AuthoritySecret, Clock: w.clock})
	}
	if err != nil {
		w.Fatal(err)
	}
	w.stop = controlplane.StartManager(w.T, mgr)
}

// restart stops the controller and starts another, which knows only what the API server has.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.admin.Create(context.Background(), o); err != nil {
		w.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) delete(o client.Object) {
	w.Helper()
	if err := w.admin.Delete(w.Context(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
}

// boundClaim creates a claim that is bound.
func (w *world) boundClaim(name string) *corev1.PersistentVolumeClaim {
	w.Helper()
	c := gen.Claim(gen.Meta(w.ns, name))
	w.create(c)
	w.bind(c)
	return c
}

func (w *world) bind(c *corev1.PersistentVolumeClaim) {
	w.Helper()
	controlplane.Update(w.T, w.admin, c, true, func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
}

// export creates an export named "e" as a user.
func (w *world) export(source *corev1.TypedLocalObjectReference, changes ...func(*exportv1.VirtualMachineExport)) *exportv1.VirtualMachineExport {
	w.Helper()
	e := gen.Export(gen.Meta(w.ns, "e"), source, changes...)
	if err := w.user.Create(w.Context(), e); err != nil {
		w.Fatal(err)
	}
	return e
}

// later lets time pass, and has the controller look at the export "e". With a clock of its own it would do that itself.
func (w *world) later(d time.Duration) {
	w.Helper()
	w.clock.SetTime(w.clock.Now().Add(d))
	e := &exportv1.VirtualMachineExport{ObjectMeta: gen.Meta(w.ns, "e")}
	err := w.admin.Patch(w.Context(), e, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"looked":%q}}}`, time.Now().Format(time.RFC3339Nano))))
	if client.IgnoreNotFound(err) != nil {
		w.Fatal(err)
	}
}

// reaches waits until the export "e" is in a phase with a reason, and returns it. words are part of the message.
func (w *world) reaches(phase exportv1.VirtualMachineExportPhase, reason, words string) *exportv1.VirtualMachineExport {
	w.Helper()
	return wait(w, &exportv1.VirtualMachineExport{ObjectMeta: gen.Meta(w.ns, "e")}, func(e *exportv1.VirtualMachineExport) error {
		if len(e.Status.Conditions) > 0 {
			if c := e.Status.Conditions[0]; e.Status.Phase == phase && c.Reason == reason && strings.Contains(c.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("not %s, %s: %+v", phase, reason, e.Status)
	})
}

func wait[T client.Object](w *world, o T, ok func(T) error) T {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		if err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		return ok(o)
	})
	return o
}

func exists[T any](T) error { return nil }

func (w *world) gone(o client.Object) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(o), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s is there: %w", o, o.GetName(), err)
	})
}

// pod waits for an export pod that is not one of those that are known.
func (w *world) pod(known ...*corev1.Pod) *corev1.Pod {
	w.Helper()
	return wait(w, &corev1.Pod{ObjectMeta: gen.Meta(w.ns, podspec.Pod("e"))}, func(p *corev1.Pod) error {
		if slices.ContainsFunc(known, func(k *corev1.Pod) bool { return k.UID == p.UID }) || p.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is still there", p.UID)
		}
		return nil
	})
}

// serves plays the kubelet: the pod's server answers the readiness probe.
func (w *world) serves(pod *corev1.Pod) {
	w.Helper()
	controlplane.Update(w.T, w.admin, pod, true, func(p *corev1.Pod) { setReady(p) })
}

// sweep plays the kubelet for a pod that the controller deletes. Without a node a deleted pod goes at once.
func (w *world) sweep(pod *corev1.Pod) {
	w.Helper()
	controlplane.Eventually(w.T, func() error {
		now := &corev1.Pod{}
		err := w.admin.Get(w.Context(), client.ObjectKeyFromObject(pod), now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return nil
		}
		return fmt.Errorf("pod %s is still there: %w", pod.UID, err)
	})
}

// foreignPod creates a pod of the user's that can write to a claim.
func (w *world) foreignPod(name, claim string) *corev1.Pod {
	w.Helper()
	in := claimInput() // a pod that the namespace admits
	p := exportPod(in.Export, in.Source, "t", Image{Name: "shell"})
	p.ObjectMeta = gen.Meta(w.ns, name)
	for i := range p.Spec.Volumes {
		if source := p.Spec.Volumes[i].PersistentVolumeClaim; source != nil {
			source.ClaimName, source.ReadOnly = claim, false
		}
	}
	w.create(p)
	return p
}

func (w *world) end(pod *corev1.Pod, phase corev1.PodPhase) {
	w.Helper()
	controlplane.Update(w.T, w.admin, pod, true, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: phase, Reason: "Evicted", Message: "The node was low on memory."}
	})
}

// verifies fails the test unless a client that trusts what status says accepts the export's certificate now.
func (w *world) verifies(e *exportv1.VirtualMachineExport) {
	w.Helper()
	if err := w.verify(e); err != nil {
		w.Error(err)
	}
}

func (w *world) verify(e *exportv1.VirtualMachineExport) error {
	leaf, err := w.certificate(e)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if e.Status.Links == nil || !roots.AppendCertsFromPEM([]byte(e.Status.Links.Internal.Cert)) {
		return fmt.Errorf("no authorities: %+v", e.Status.Links)
	}
	_, err = leaf.Verify(x509.VerifyOptions{DNSName: e.Status.ServiceName + "." + w.ns + ".svc", Roots: roots, CurrentTime: w.clock.Now()})
	return err
}

func (w *world) certificate(e *exportv1.VirtualMachineExport) (*x509.Certificate, error) {
	s := &corev1.Secret{}
	if err := w.admin.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: podspec.CertificateSecret(e.Name)}, s); err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	return pair.Leaf, err
}

// children lists what the controller has made in the namespace.
func (w *world) children() []client.Object {
	w.Helper()
	var all []client.Object
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.ServiceList{}, &corev1.SecretList{}} {
		if err := w.admin.List(w.Context(), list, client.InNamespace(w.ns), client.MatchingLabels{layout.LabelApp: AppExporter}); err != nil {
			w.Fatal(err)
		}
		switch list := list.(type) {
		case *corev1.PodList:
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
		case *corev1.ServiceList:
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
		case *corev1.SecretList:
			for i := range list.Items {
				all = append(all, &list.Items[i])
			}
		}
	}
	return all
}

func machine(ns string, claims ...string) *kubevirtv1.VirtualMachine {
	var disks []func(*kubevirtv1.VirtualMachineInstanceSpec)
	for _, c := range claims {
		disks = append(disks, gen.Disk(c, c))
	}
	return gen.VirtualMachine(metav1.ObjectMeta{Namespace: ns, Name: "vm"}, gen.Guest(disks...), gen.SetRunStrategy(kubevirtv1.RunStrategyHalted))
}
