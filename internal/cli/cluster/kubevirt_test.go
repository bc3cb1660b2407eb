package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// fakeAPI serves the list of groups, and lets KubeVirt's fake API start a machine.
func fakeAPI(t *testing.T, groups string, status int) (c *Client, calls *[]string) {
	t.Helper()
	calls = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/apis" {
			fmt.Fprintf(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[%s]}`, groups)
			return
		}
		if !strings.Contains(r.Header.Get("Accept"), "*/*") { // as KubeVirt does
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		*calls = append(*calls, r.Method+" "+r.URL.Path)
		w.WriteHeader(status)
		if status >= http.StatusBadRequest {
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"VM is already running","code":%d}`, status)
		}
	}))
	t.Cleanup(server.Close)
	return &Client{Namespace: "demo", config: &rest.Config{Host: server.URL}}, calls
}

func TestClient_knowsWhatRunsTheMachines(t *testing.T) {
	t.Parallel()
	for groups, want := range map[string]bool{
		`{"name":"kubevirt.io","versions":[]}`:                                                   false,
		`{"name":"kubevirt.io","versions":[]},{"name":"subresources.kubevirt.io","versions":[]}`: true,
	} {
		c, _ := fakeAPI(t, groups, http.StatusAccepted)
		if have, err := c.RunsKubeVirt(t.Context()); err != nil || have != want {
			t.Errorf("%s: %t, %v", groups, have, err)
		}
	}
	c := &Client{config: &rest.Config{Host: "http://127.0.0.1:1"}}
	if _, err := c.RunsKubeVirt(t.Context()); Classify(err) != Unreachable {
		t.Errorf("no server: %v", err)
	}
}

// A machine of KubeVirt's is started by its subresource. A refusal is an error, in KubeVirt's words.
func TestClient_asksKubeVirtForPower(t *testing.T) {
	t.Parallel()
	c, calls := fakeAPI(t, "", http.StatusAccepted)
	if err := c.ChangePower(t.Context(), "web", "restart"); err != nil {
		t.Error(err)
	}
	want := "PUT /apis/subresources.kubevirt.io/v1/namespaces/demo/virtualmachines/web/restart"
	if len(*calls) != 1 || (*calls)[0] != want {
		t.Errorf("%q, want %q", *calls, want)
	}
	c, _ = fakeAPI(t, "", http.StatusConflict)
	if err := c.ChangePower(t.Context(), "web", "start"); err == nil || err.Error() != "VM is already running" {
		t.Errorf("%v", err)
	}
}
