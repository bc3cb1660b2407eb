//go:build box

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Connections from each of {pod on node1, pod on node2, node1, node2, host} to each pod and to the Service.
func TestNetwork(t *testing.T) {
	pods := map[string]*corev1.Pod{}
	for _, node := range []string{"node1", "node2"} {
		pods[node] = start(t, probePod("on-"+node, node))
	}
	svc, err := client.CoreV1().Services(namespace).Create(context.Background(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "probe"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "probe"},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Services(namespace).Delete(context.Background(), "probe", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	sources := map[string]func(url string) (string, error){
		"pod on node1": func(url string) (string, error) { return kubectl("exec", "on-node1", "--", "/probe", "get", url) },
		"pod on node2": func(url string) (string, error) { return kubectl("exec", "on-node2", "--", "/probe", "get", url) },
		"node1":        func(url string) (string, error) { return fromNode("node1", url) },
		"node2":        func(url string) (string, error) { return fromNode("node2", url) },
		"host":         fromHost,
	}
	for name, get := range sources {
		for node, pod := range pods {
			eventually(t, name+" to reach the pod on "+node, func() error { // a pod may be ready before it listens
				got, err := get("http://" + pod.Status.PodIP + ":8080/")
				if err == nil && got != "on-"+node {
					err = fmt.Errorf("%q answers", got)
				}
				return err
			})
		}
		// Both endpoints must answer, wherever the connection starts.
		seen := map[string]bool{}
		eventually(t, name+" to reach both pods through the Service", func() error {
			got, err := get("http://" + svc.Spec.ClusterIP + "/")
			if err != nil {
				return err
			}
			seen[got] = true
			if !seen["on-node1"] || !seen["on-node2"] {
				return fmt.Errorf("only %v answered", seen)
			}
			return nil
		})
	}
}

// A pod finds a Service by its short name and by its full one, and learns at once that another name does not exist.
func TestNames(t *testing.T) {
	start(t, probePod("asks", "node2"))
	api, err := client.CoreV1().Services("default").Get(context.Background(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubernetes.default", "kubernetes.default.svc.cluster.local"} {
		eventually(t, name+" to be found", func() error {
			got, err := kubectl("exec", "asks", "--", "/probe", "resolve", name)
			if err == nil && got != "["+api.Spec.ClusterIP+"]" {
				err = fmt.Errorf("its addresses are %s", got)
			}
			return err
		})
	}
	got, err := kubectl("exec", "asks", "--", "/probe", "resolve", "nobody.example.com")
	if err == nil || !strings.Contains(err.Error(), "no such host") {
		t.Errorf("resolve nobody.example.com: %s, %v, want that there is no such host", got, err)
	}
}

// fromNode sends the request with bash, because the test image's program is not on the nodes.
func fromNode(node, url string) (string, error) {
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	name, port, found := strings.Cut(host, ":")
	if !found {
		port = "80"
	}
	script := fmt.Sprintf(`exec 3<>/dev/tcp/%s/%s && printf 'GET /%s HTTP/1.0\r\n\r\n' >&3 && cat <&3`, name, port, path)
	out, err := run("exec", node, "--", "timeout", "5", "bash", "-c", script)
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	_, body, _ := strings.Cut(out, "\r\n\r\n")
	return body, nil
}

func fromHost(url string) (string, error) {
	// A new connection each time, so that kube-proxy chooses again.
	c := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}

// A mount that one pod makes in a hostPath reaches another pod on the same node, but not the other node and not the host.
func TestMountPropagation(t *testing.T) {
	share := func(mode corev1.MountPropagationMode) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			kind, privileged := corev1.HostPathDirectoryOrCreate, true
			s.Volumes = []corev1.Volume{{Name: "share", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/varve-share", Type: &kind},
			}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "share", MountPath: "/share", MountPropagation: &mode}}
			s.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
		}
	}
	start(t, probePod("giver", "node1", share(corev1.MountPropagationBidirectional)))
	start(t, probePod("taker", "node1", share(corev1.MountPropagationHostToContainer)))
	probe(t, "giver", "tmpfs", "/share/mnt")
	want := probe(t, "giver", "fill", "/share/mnt/file", "100")
	if got := probe(t, "taker", "sum", "/share/mnt/file", "100"); got != want {
		t.Errorf(wrongData+"the taker reads %s, not %s", got, want)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	others := strings.Replace(string(mounts), " "+dir.Volumes()+" xfs ", " ", 1) // the only one that belongs there
	if strings.Contains(others, "varve-share") || strings.Contains(others, string(dir)) {
		t.Errorf("mounts of the box are on the host:\n%s", mounts)
	}
	mustRun(t, "exec", "node1", "--", "umount", "/var/lib/kubelet/varve-share/mnt")
}
