package moverpod

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// fakeAPI is no API server: it has one object, and answers what a mover asks for. The tests behind the tag controlplane use a real one.
type fakeAPI struct {
	*httptest.Server

	job datamove.Job

	mu      sync.Mutex
	object  map[string]any // nil: it does not exist
	version int
	patches []map[string]any
	changed chan struct{} // closed, and replaced, at each change
	// refuse returns the HTTP status of a request that fails, or 0. It is called without a lock.
	refuse func(*http.Request) int
	// secret is the data of the Secret of the pod's name; nil: there is none.
	secret map[string][]byte
}

// makeSecret makes the Secret of the pod's name.
func (a *fakeAPI) makeSecret() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secret = map[string][]byte{}
}

// secretData returns what was written into it.
func (a *fakeAPI) secretData() map[string][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.secret)
}

func (a *fakeAPI) patchSecret(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var patch corev1.Secret
	switch err := json.NewDecoder(r.Body).Decode(&patch); {
	case a.secret == nil:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case err != nil || patch.Type != datamove.DefinitionSecretType:
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		maps.Copy(a.secret, patch.Data)
		send(w, []byte(`{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}`))
	}
}

// newFakeAPI serves the object of a job, in a phase.
func newFakeAPI(t *testing.T, job datamove.Job, phase velerov2.Phase) *fakeAPI {
	t.Helper()
	a := &fakeAPI{job: job, changed: make(chan struct{})}
	a.object = map[string]any{
		"apiVersion": velerov2.GroupVersion.String(), "kind": string(job.Kind),
		"metadata": map[string]any{"namespace": job.Namespace, "name": job.Name, "uid": string(job.UID)},
		"spec":     map[string]any{}, "status": map[string]any{"phase": string(phase)},
	}
	a.change(func(map[string]any) {})
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

// change changes the object.
func (a *fakeAPI) change(edit func(o map[string]any)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	edit(a.object)
	a.touch()
}

// touch makes the object's version new. The lock is held.
func (a *fakeAPI) touch() {
	a.version++
	if a.object != nil {
		a.object["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) remove() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.object = nil
	a.touch()
}

func (a *fakeAPI) cancel() {
	a.change(func(o map[string]any) { o["spec"].(map[string]any)["cancel"] = true })
}

func (a *fakeAPI) setPhase(phase velerov2.Phase) {
	a.change(func(o map[string]any) { o["status"].(map[string]any)["phase"] = string(phase) })
}

// text returns the object in JSON, and a channel that is closed when it changes; nil if there is none.
func (a *fakeAPI) text() ([]byte, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.object == nil {
		return nil, a.changed
	}
	text, err := json.Marshal(a.object)
	if err != nil {
		panic(err)
	}
	return text, a.changed
}

// progress returns what the patches say about progress, in their order.
func (a *fakeAPI) progress() (all []velerov2.Progress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, patch := range a.patches {
		o := &velerov2.DataUpload{}
		if patch["status"] == nil {
			continue
		}
		text, _ := json.Marshal(patch)
		if json.Unmarshal(text, o) == nil {
			all = append(all, o.Status.Progress)
		}
	}
	return all
}

// lastBytesDone returns the latest progress.
func (a *fakeAPI) lastBytesDone() int64 {
	all := a.progress()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].BytesDone
}

// report returns the report on the object, if there is one.
func (a *fakeAPI) report(t *testing.T) (report datamove.Report, ok bool) {
	t.Helper()
	text, _ := a.text()
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &o.Object); err != nil {
		t.Fatal(err)
	}
	annotation := o.GetAnnotations()[datamove.AnnotationReport]
	if annotation == "" {
		return report, false
	}
	report, err := datamove.DecodeReport(annotation)
	if err != nil {
		t.Fatal(err)
	}
	return report, true
}

func (a *fakeAPI) patchCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.patches)
}

func (a *fakeAPI) setRefuse(refuse func(*http.Request) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = refuse
}

func (a *fakeAPI) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	refuse := a.refuse
	a.mu.Unlock()
	if refuse != nil {
		if status := refuse(r); status != 0 {
			fail(w, status, metav1.StatusReasonInternalError)
			return
		}
	}
	resource := "datauploads"
	if a.job.Kind == datamove.Download {
		resource = "datadownloads"
	}
	all := fmt.Sprintf("/apis/velero.io/v2alpha1/namespaces/%s/%s", a.job.Namespace, resource)
	switch {
	case r.URL.Path == "/api/v1/namespaces/varve/secrets/"+datamove.ChildName(a.job.Kind, a.job.UID) && r.Method == http.MethodPatch:
		a.patchSecret(w, r)
	case r.URL.Path == all && r.URL.Query().Get("watch") != "" && r.URL.Query().Get("fieldSelector") == "metadata.name="+a.job.Name:
		a.watch(w, r)
	case r.URL.Path != all+"/"+a.job.Name:
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	case r.Method == http.MethodGet:
		if text, _ := a.text(); text != nil {
			send(w, text)
		} else {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		}
	case r.Method == http.MethodPatch && r.Header.Get("Content-Type") == string(types.MergePatchType):
		a.patch(w, r)
	default:
		fail(w, http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

func send(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	})
}

func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var before []byte
	for {
		text, changed := a.text()
		switch {
		case text != nil:
			fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", text)
		case before != nil:
			fmt.Fprintf(w, `{"type":"DELETED","object":%s}`+"\n", before)
		}
		w.(http.Flusher).Flush()
		before = text
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (a *fakeAPI) patch(w http.ResponseWriter, r *http.Request) {
	var patch map[string]any
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.object == nil {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	metadata, now := patch["metadata"].(map[string]any), a.object["metadata"].(map[string]any)
	switch {
	case metadata["uid"] != now["uid"]:
		fail(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	case metadata["resourceVersion"] != nil && metadata["resourceVersion"] != now["resourceVersion"]:
		fail(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	a.patches = append(a.patches, patch)
	mergeInto(a.object, patch)
	a.touch()
	text, _ := json.Marshal(a.object)
	send(w, text)
}

func mergeInto(o, patch map[string]any) {
	for key, value := range patch {
		inner, nested := value.(map[string]any)
		if value == nil {
			delete(o, key)
			continue
		}
		if !nested {
			o[key] = value
			continue
		}
		target, ok := o[key].(map[string]any)
		if !ok {
			target = map[string]any{}
		}
		target = maps.Clone(target)
		mergeInto(target, inner)
		o[key] = target
	}
}

// isPatch says whether a request is a patch.
func isPatch(r *http.Request) bool { return r.Method == http.MethodPatch }

// isReport says whether a request is a patch of the annotation.
func isReport(body string) bool { return strings.Contains(body, datamove.AnnotationReport) }
