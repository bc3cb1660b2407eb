// Package deploy_test checks the manifests: that they are what their kinds say, that nobody gets more rights than they need, and
// that names agree with the code.
package deploy_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	admissionregv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	exportv1 "github.com/varvebackup/varve/api/export/v1beta1"
	kubevirtv1 "github.com/varvebackup/varve/api/kubevirt/v1"
	"github.com/varvebackup/varve/internal/admission"
	"github.com/varvebackup/varve/internal/controller/backup/tunnelkey"
	"github.com/varvebackup/varve/internal/controller/backup/virtualmachineexport"
	"github.com/varvebackup/varve/internal/controller/machine/holdpod"
	"github.com/varvebackup/varve/internal/controller/machine/virtualmachineinstance"
	"github.com/varvebackup/varve/internal/controller/store/certificate"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/export/podspec"
	"github.com/varvebackup/varve/internal/export/proxy"
	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/store/download"
	"github.com/varvebackup/varve/internal/tracking"
)

func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, kubevirtv1.AddToScheme, backupv1.AddToScheme,
		exportv1.AddToScheme, snapshotv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}

// readObjects reads the objects of a file. A field that a kind does not have fails the test.
func readObjects(t *testing.T, path string) []runtime.Object {
	t.Helper()
	strict := decoder(t)
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(readText(t, path))))
	var objects []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		o, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		objects = append(objects, o)
	}
}

// manifests reads every object below this directory, by file, but not what is for Prometheus, beside KubeVirt, or for
// Helm.
func manifests(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	files := map[string][]runtime.Object{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && (path == "monitoring" || path == "beside" || path == "chart") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || filepath.Base(path) == "kustomization.yaml" {
			return err
		}
		files[path] = readObjects(t, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// find returns the one object of a type and name.
func find[T runtime.Object](t *testing.T, name string) T {
	t.Helper()
	var found []T
	for _, objects := range manifests(t) {
		for _, o := range objects {
			accessor, err := meta.Accessor(o)
			if err != nil {
				t.Fatal(err)
			}
			if typed, ok := o.(T); ok && accessor.GetName() == name {
				found = append(found, typed)
			}
		}
	}
	if len(found) != 1 {
		var zero T
		t.Fatalf("%d objects %T %s, want 1", len(found), zero, name)
	}
	return found[0]
}

// resources returns what a kustomization lists, as paths in deploy/.
func resources(t *testing.T, dir string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, r := range k.Resources {
		if filepath.Ext(r) == "" {
			paths = append(paths, resources(t, filepath.Join(dir, r))...)
			continue
		}
		paths = append(paths, filepath.Join(dir, r))
	}
	return paths
}

func TestKustomizationHasEveryManifest(t *testing.T) {
	t.Parallel()
	var want []string
	for path := range manifests(t) {
		// Applied with the rest, they would replace those of Velero, of Harvester or of Longhorn: see install.sh.
		others := strings.HasPrefix(path, "crd/velero.io_") || strings.HasPrefix(path, "crd/harvesterhci.io_") ||
			strings.HasPrefix(path, "crd/longhorn.io_") ||
			path == "store/snapshotclass.yaml" // install.sh applies it where its kind is
		if !strings.HasPrefix(path, "box/") && !strings.HasPrefix(path, "network/") && !others {
			want = append(want, path)
		}
	}
	got := append(resources(t, "."), resources(t, "store")...)
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files and the kustomizations differ: %s", diff)
	}
}

// rules are all rules by the role that has them.
func rules(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	all := map[string][]rbacv1.PolicyRule{}
	for _, objects := range manifests(t) {
		for _, o := range objects {
			switch o := o.(type) {
			case *rbacv1.ClusterRole:
				all[o.Name] = append(all[o.Name], o.Rules...)
			case *rbacv1.Role:
				all[o.Namespace+"/"+o.Name] = append(all[o.Namespace+"/"+o.Name], o.Rules...)
			}
		}
	}
	if len(all) < 6 {
		t.Fatalf("only %d roles", len(all))
	}
	return all
}

func TestNoRoleHasWildcards(t *testing.T) {
	t.Parallel()
	for role, list := range rules(t) {
		for _, r := range list {
			for _, words := range [][]string{r.Verbs, r.Resources, r.APIGroups, r.NonResourceURLs} {
				if slices.ContainsFunc(words, func(s string) bool { return strings.Contains(s, "*") }) {
					t.Errorf("%s: wildcard in %v", role, r)
				}
			}
			for _, verb := range []string{"escalate", "bind", "impersonate"} {
				if slices.Contains(r.Verbs, verb) {
					t.Errorf("%s may %s", role, verb)
				}
			}
			for _, resource := range []string{"pods/exec", "pods/ephemeralcontainers", "nodes/proxy", "serviceaccounts/token"} {
				if slices.Contains(r.Resources, resource) && !isForDownloads(r) {
					t.Errorf("%s may use %s", role, resource)
				}
			}
		}
	}
}

// isForDownloads reports whether a rule allows only tokens of the account for downloads of images, which has no rights.
func isForDownloads(r rbacv1.PolicyRule) bool {
	return cmp.Equal(r, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, Verbs: []string{"create"},
		ResourceNames: []string{download.ServiceAccount},
	})
}

// The account whose tokens stores take for downloads is there, and no binding names it.
func TestDownloadAccount_hasNoRights(t *testing.T) {
	t.Parallel()
	find[*corev1.ServiceAccount](t, download.ServiceAccount)
	for _, objects := range manifests(t) {
		for _, o := range objects {
			var subjects []rbacv1.Subject
			switch o := o.(type) {
			case *rbacv1.ClusterRoleBinding:
				subjects = o.Subjects
			case *rbacv1.RoleBinding:
				subjects = o.Subjects
			}
			for _, s := range subjects {
				if s.Name == download.ServiceAccount {
					t.Errorf("%+v gives it rights", o)
				}
			}
		}
	}
}

// Secrets are read by name alone: nobody lists or watches them. The controller makes those of exports and of backups in pull mode in
// their namespaces, deletes those of backups, and reads there the one that an export or a backup names; nobody else has any.
func TestSecretsAreOutOfReach(t *testing.T) {
	t.Parallel()
	for role, list := range rules(t) {
		for _, r := range list {
			if !slices.Contains(r.Resources, "secrets") {
				continue
			}
			if role == "varve-controller" && cmp.Equal(r.Verbs, []string{"create", "delete", "get", "update"}) && cmp.Equal(r.Resources, []string{"secrets"}) {
				continue
			}
			if role == "varve/varve-mover" && cmp.Equal(r.Verbs, []string{"patch"}) &&
				cmp.Equal(r.Resources, []string{"secrets"}) {
				continue // the policy varve-mover-own-secret leaves each pod the one of its name
			}
			created := cmp.Equal(r.Verbs, []string{"create"})
			named := slices.ContainsFunc([][]string{
				{admission.DefaultSecret}, {tunnelkey.Secret}, {certificate.AuthoritySecret, certificate.Secret},
			}, func(names []string) bool { return cmp.Equal(r.ResourceNames, names) })
			if role != "varve/varve-controller" || !created && !named {
				t.Errorf("%s: %v", role, r)
			}
		}
	}
}

// questions are created to ask the API server something, and change nothing.
var questions = []string{"tokenreviews", "subjectaccessreviews"}

// moverWrites are what moving volumes takes, beside what is in Varve's namespace: the objects of snapshots, volumes, and the report on the
// object that asks for it. Their names are not known before.
var moverWrites = map[string][]string{
	"persistentvolumes":      {"patch"},
	"volumesnapshots":        {"delete"},
	"volumesnapshotcontents": {"create", "delete", "patch"},
	"datauploads":            {"patch"},
	"datadownloads":          {"patch"},
}

// Outside Varve's namespace, a handler makes no pods and does not change what users ask for. What it can do in that namespace is in
// docs/threat-model.md.
func TestHandlerIsConfined(t *testing.T) {
	t.Parallel()
	for _, r := range rules(t)["varve-handler"] {
		for _, resource := range r.Resources {
			if slices.Contains(questions, resource) {
				continue
			}
			allowed := append([]string{"get", "list", "watch"}, moverWrites[resource]...)
			within := !slices.ContainsFunc(r.Verbs, func(v string) bool { return !slices.Contains(allowed, v) })
			if !within && resource != "events" && !strings.HasSuffix(resource, "/status") {
				t.Errorf("the handler may %v %s", r.Verbs, resource)
			}
		}
	}
}

func TestControllerIsUnprivileged(t *testing.T) {
	t.Parallel()
	spec := find[*appsv1.Deployment](t, "varve-controller").Spec.Template.Spec
	c := spec.Containers[0].SecurityContext
	if spec.HostNetwork || spec.HostPID || spec.SecurityContext == nil || !*spec.SecurityContext.RunAsNonRoot || !*c.ReadOnlyRootFilesystem ||
		*c.AllowPrivilegeEscalation || c.Privileged != nil || !cmp.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(spec.Volumes) > 0 {
		t.Errorf("security: %+v %+v", spec.SecurityContext, c)
	}
}

// What takes over the export proxy has clients' tokens that pass, and nothing else: no account, no key of an authority.
func TestExportProxy_hasNothingButWhatItNeeds(t *testing.T) {
	t.Parallel()
	deployment := find[*appsv1.Deployment](t, proxy.Name)
	spec := deployment.Spec.Template.Spec
	c := spec.Containers[0].SecurityContext
	if spec.HostNetwork || spec.HostPID || spec.SecurityContext == nil || !*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		!*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || c.Privileged != nil || !cmp.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("security: %+v %+v", spec.SecurityContext, c)
	}
	if spec.ServiceAccountName != "" || spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken || len(spec.Containers) != 1 || len(spec.InitContainers) > 0 {
		t.Errorf("account %q, %v", spec.ServiceAccountName, spec.AutomountServiceAccountToken)
	}
	if *deployment.Spec.Replicas < 2 || int64(proxy.DefaultLimits.PartingTime.Seconds()) >= *spec.TerminationGracePeriodSeconds {
		t.Errorf("%d replicas, %d s to end", *deployment.Spec.Replicas, *spec.TerminationGracePeriodSeconds)
	}
	mounted := map[string]string{}
	for _, m := range spec.Containers[0].VolumeMounts {
		for _, v := range spec.Volumes {
			if v.Name != m.Name || v.Secret == nil || !m.ReadOnly {
				continue
			}
			for _, item := range v.Secret.Items {
				mounted[m.MountPath+"/"+item.Path] = v.Secret.SecretName + "/" + item.Key
			}
		}
	}
	files := proxy.PodFiles()
	if want := map[string]string{
		files.Certificate: proxy.CertificateSecret + "/tls.crt", files.Key: proxy.CertificateSecret + "/tls.key",
		files.Authorities: virtualmachineexport.AuthoritySecret + "/ca.crt",
	}; len(spec.Volumes) != 2 || !maps.Equal(mounted, want) {
		t.Errorf("mounts %v, want %v", mounted, want)
	}
}

// The Service, the probes, the policy and the budget are those of the proxy's pods.
func TestExportProxy_isReachable(t *testing.T) {
	t.Parallel()
	template := find[*appsv1.Deployment](t, proxy.Name).Spec.Template
	container := template.Spec.Containers[0]
	if len(container.Ports) != 1 || container.Ports[0].ContainerPort != proxy.Port || container.ReadinessProbe.HTTPGet.Path != proxy.ReadyPath || container.LivenessProbe.HTTPGet.Path != proxy.HealthPath ||
		container.ReadinessProbe.HTTPGet.Scheme != corev1.URISchemeHTTPS {
		t.Errorf("%+v %+v", container.Ports, container.ReadinessProbe)
	}
	service := find[*corev1.Service](t, proxy.Name)
	if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(template.Labels)) || len(service.Spec.Ports) != 1 || service.Spec.Ports[0].TargetPort.String() != container.Ports[0].Name {
		t.Errorf("%+v", service.Spec)
	}
	budget := find[*policyv1.PodDisruptionBudget](t, proxy.Name)
	policy := find[*networkingv1.NetworkPolicy](t, proxy.Name)
	for _, s := range []*metav1.LabelSelector{budget.Spec.Selector, &policy.Spec.PodSelector} {
		if selector, err := metav1.LabelSelectorAsSelector(s); err != nil || selector.Empty() || !selector.Matches(labels.Set(template.Labels)) {
			t.Errorf("%v selects other pods: %v", s, err)
		}
	}
	open, guarded := policyPorts(policy)
	if !slices.Equal(open, []string{container.Ports[0].Name}) || len(guarded) > 0 {
		t.Errorf("policy opens %v, %v", open, guarded)
	}
}

// Of all pods, the proxy may call those of exports.
func TestNetworkPolicies_ofTheExportProxyLeadToExportsAlone(t *testing.T) {
	t.Parallel()
	policy := find[*networkingv1.NetworkPolicy](t, proxy.Name)
	if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) {
		t.Errorf("%v", policy.Spec.PolicyTypes)
	}
	for _, rule := range policy.Spec.Egress {
		if len(rule.Ports) == 0 {
			t.Errorf("every port: %+v", rule)
		}
		for _, port := range rule.Ports {
			dns := port.Port.IntValue() == 53
			exports := port.Port.IntValue() == podspec.HTTPSPort && len(rule.To) == 1 && maps.Equal(rule.To[0].PodSelector.MatchLabels, map[string]string{layout.LabelApp: virtualmachineexport.AppExporter})
			if !dns && !exports {
				t.Errorf("%+v", rule)
			}
		}
	}
}

func TestHandlerReachesPods(t *testing.T) {
	t.Parallel()
	spec := find[*appsv1.DaemonSet](t, "varve-handler").Spec.Template.Spec
	mount := spec.Containers[0].VolumeMounts[0]
	//nolint:gocritic // the constant is the longer path
	if !strings.HasPrefix(layout.KubeletPods, mount.MountPath+"/") || mount.MountPropagation == nil || *mount.MountPropagation != corev1.MountPropagationBidirectional {
		t.Errorf("mount %+v does not carry mounts below %s", mount, layout.KubeletPods)
	}
	if path := spec.Volumes[0].HostPath.Path; path != mount.MountPath {
		t.Errorf("the node's %s is at %s: paths in /proc/self/mountinfo would not agree", path, mount.MountPath)
	}
	if !cmp.Equal(spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("a guest can be on a node where the handler is not: %v", spec.Tolerations)
	}
}

func TestWebhookIsReachable(t *testing.T) {
	t.Parallel()
	service := find[*corev1.Service](t, admission.DefaultService)
	hooks := find[*admissionregv1.ValidatingWebhookConfiguration](t, admission.DefaultConfiguration).Webhooks
	paths := []string{admission.Path, admission.TrackersPath, admission.SchedulesPath, admission.ImagesPath}
	if len(hooks) != len(paths) {
		t.Fatalf("%d webhooks, want %d", len(hooks), len(paths))
	}
	controller := find[*appsv1.Deployment](t, "varve-controller")
	for i := range hooks {
		hook := hooks[i].ClientConfig.Service
		if hook.Name != service.Name || hook.Namespace != service.Namespace || *hook.Port != service.Spec.Ports[0].Port || *hook.Path != paths[i] {
			t.Errorf("webhook %+v does not reach service %+v", hook, service.Spec.Ports)
		}
	}
	for key, value := range service.Spec.Selector {
		if controller.Spec.Template.Labels[key] != value {
			t.Errorf("service selects %s=%s, the controller has %v", key, value, controller.Spec.Template.Labels)
		}
	}
	ports := controller.Spec.Template.Spec.Containers[0].Ports
	if !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool {
		return intstr.FromString(p.Name) == service.Spec.Ports[0].TargetPort && p.ContainerPort == admission.DefaultPort
	}) {
		t.Errorf("no port of %v is the webhook's", ports)
	}
}

// Policies that select nobody, or leave a port out, fail without a word.
func TestNetworkPolicies_coverThePortsOfTheirPods(t *testing.T) {
	t.Parallel()
	pods := map[string]corev1.PodTemplateSpec{
		"varve-controller": find[*appsv1.Deployment](t, "varve-controller").Spec.Template,
		"varve-handler":    find[*appsv1.DaemonSet](t, "varve-handler").Spec.Template,
	}
	for name, template := range pods {
		policy := find[*networkingv1.NetworkPolicy](t, name)
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil || !selector.Matches(labels.Set(template.Labels)) || selector.Empty() || policy.Namespace != "varve" {
			t.Errorf("policy %s does not select its pods: %v, %v", name, selector, err)
		}
		if template.Spec.HostNetwork || !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("policy %s has no effect, or cuts the pod from the API server: %v", name, policy.Spec.PolicyTypes)
		}
		open, guarded := policyPorts(policy)
		want := []string{"metrics"}
		if name == "varve-controller" && !slices.Equal(open, []string{"webhook"}) || name != "varve-controller" && len(open) > 0 || !slices.Equal(guarded, want) {
			t.Errorf("policy %s opens %v to everybody and %v to some", name, open, guarded)
		}
		for _, port := range append(open, guarded...) {
			if !slices.ContainsFunc(template.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port }) {
				t.Errorf("policy %s has port %s, which the pod does not have", name, port)
			}
		}
	}
}

// policyPorts returns the ports that a policy opens to everybody, and those that it opens to some.
func policyPorts(policy *networkingv1.NetworkPolicy) (open, guarded []string) {
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			if len(rule.From) == 0 {
				open = append(open, port.Port.String())
			} else {
				guarded = append(guarded, port.Port.String())
			}
		}
	}
	return open, guarded
}

// The policies for machines must select Varve's pods, and must not cut a guest's network: it calls from its pod's address.
func TestNetworkPolicies_ofMachinesLeaveGuestsTheirNetwork(t *testing.T) {
	t.Parallel()
	// A guest that moves comes from the launcher pod that it leaves.
	fromLauncher := networkingv1.NetworkPolicyIngressRule{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{layout.LabelApp: virtualmachineinstance.AppLauncher}}}},
		Ports: []networkingv1.NetworkPolicyPort{{
			Port:     ptr.To(intstr.FromInt32(layout.MigrationPort)),
			Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	for name, want := range map[string]struct {
		app   string
		types []networkingv1.PolicyType
		rules []networkingv1.NetworkPolicyIngressRule
	}{
		"varve-launchers": {
			virtualmachineinstance.AppLauncher,
			[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			[]networkingv1.NetworkPolicyIngressRule{fromLauncher},
		},
		"varve-attachments": {holdpod.App, []networkingv1.PolicyType{
			networkingv1.PolicyTypeIngress,
			networkingv1.PolicyTypeEgress,
		}, nil},
	} {
		policy := find[*networkingv1.NetworkPolicy](t, name)
		selected := map[string]string{layout.LabelApp: want.app}
		if !maps.Equal(policy.Spec.PodSelector.MatchLabels, selected) || !slices.Equal(policy.Spec.PolicyTypes, want.types) ||
			!equality.Semantic.DeepEqual(policy.Spec.Ingress, want.rules) || len(policy.Spec.Egress) > 0 {
			t.Errorf("policy %s: %+v", name, policy.Spec)
		}
	}
}

// An export pod reads disks: what takes it over must not be able to send them elsewhere.
func TestNetworkPolicies_ofExportsOpenTheirPortsAlone(t *testing.T) {
	t.Parallel()
	policy := find[*networkingv1.NetworkPolicy](t, "varve-exports")
	if !maps.Equal(policy.Spec.PodSelector.MatchLabels, map[string]string{layout.LabelApp: virtualmachineexport.AppExporter}) ||
		!slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) || len(policy.Spec.Egress) > 0 {
		t.Errorf("%+v", policy.Spec)
	}
	var open []int
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			open = append(open, port.Port.IntValue())
		}
	}
	if !slices.Equal(open, []int{podspec.HTTPSPort, podspec.TunnelPort}) {
		t.Errorf("open: %v", open)
	}
}

// A mover pod reads what the launcher of a running machine sends. Nobody else calls it.
func TestNetworkPolicies_ofMoversAdmitLaunchersAlone(t *testing.T) {
	t.Parallel()
	policy := find[*networkingv1.NetworkPolicy](t, "varve-mover")
	selected := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: datamove.LabelObject, Operator: metav1.LabelSelectorOpExists}}}
	if policy.Namespace != layout.Namespace || !cmp.Equal(policy.Spec.PodSelector, selected) ||
		!slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) || len(policy.Spec.Ingress) != 1 {
		t.Fatalf("%+v", policy)
	}
	rule := policy.Spec.Ingress[0]
	if len(rule.From) != 1 || rule.From[0].NamespaceSelector == nil || rule.From[0].PodSelector == nil || len(rule.From[0].NamespaceSelector.MatchLabels) > 0 ||
		!maps.Equal(rule.From[0].PodSelector.MatchLabels, map[string]string{layout.LabelApp: virtualmachineinstance.AppLauncher}) ||
		len(rule.Ports) != 1 || rule.Ports[0].Port.IntValue() != datamove.TunnelPort {
		t.Errorf("%+v", rule)
	}
}

// What the SnapshotMetadata service of a driver asks for, and the Secret of their name for a definition, is all that mover pods may do beside
// their own object.
func TestRoles_ofMoversReadSnapshotsInVarvesNamespaceAlone(t *testing.T) {
	t.Parallel()
	want := []rbacv1.PolicyRule{{
		APIGroups: []string{"snapshot.storage.k8s.io"},
		Resources: []string{"volumesnapshots"}, Verbs: []string{"get"},
	}, {
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"patch"},
	}}
	if diff := cmp.Diff(want, rules(t)[layout.Namespace+"/"+datamove.ServiceAccount]); diff != "" {
		t.Error(diff)
	}
}

func TestEveryBindingHasItsRoleAndAccount(t *testing.T) {
	t.Parallel()
	roles := rules(t)
	seen := 0
	check := func(name string, ref rbacv1.RoleRef, namespace string, subjects []rbacv1.Subject) {
		seen++
		key := ref.Name
		if ref.Kind == "Role" {
			key = namespace + "/" + ref.Name
		}
		if roles[key] == nil {
			t.Errorf("binding %s: no %s %s", name, ref.Kind, key)
		}
		for _, s := range subjects {
			find[*corev1.ServiceAccount](t, s.Name)
		}
	}
	for _, objects := range manifests(t) {
		for _, o := range objects {
			switch o := o.(type) {
			case *rbacv1.ClusterRoleBinding:
				check(o.Name, o.RoleRef, "", o.Subjects)
			case *rbacv1.RoleBinding:
				check(o.Name, o.RoleRef, o.Namespace, o.Subjects)
			}
		}
	}
	if seen != 6 {
		t.Errorf("%d bindings, want 6", seen)
	}
}

func TestBoxIsConfigured(t *testing.T) {
	t.Parallel()
	kv := find[*kubevirtv1.KubeVirt](t, "kubevirt")
	for _, gate := range []string{kubevirtv1.IncrementalBackup, kubevirtv1.UtilityVolumes, kubevirtv1.VMExport} {
		if !tracking.GateEnabled(kv, gate) {
			t.Errorf("gate %s is off", gate)
		}
	}
	if !kv.Spec.Configuration.DeveloperConfiguration.UseEmulation {
		t.Error("the box would use /dev/kvm")
	}
	label := map[string]string{"changedBlockTracking": "true"}
	for name, c := range map[string]struct {
		namespace, machine map[string]string
		want               bool
	}{"neither": {}, "machine": {nil, label, true}, "namespace": {label, nil, true}} {
		if got, err := tracking.Selected(kv, c.namespace, c.machine); err != nil || got != c.want {
			t.Errorf("%s: selected %v, %v", name, got, err)
		}
	}
}
