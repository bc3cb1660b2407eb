package moverpod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// object is what a run reads of its DataUpload or DataDownload.
type object struct {
	version string
	phase   velerov2.Phase
	// cancel: spec.cancel is set, or the object is being deleted.
	cancel bool
	report string
	// note is the Note of a pod, encoded, or "".
	note string
	// counted is the pod whose report counts; "": none yet.
	counted  types.UID
	progress velerov2.Progress
	// blockSize is what spec.dataMoverConfig of a DataUpload has for datamove.ConfigBlockSize.
	blockSize string
}

// errGone: the object does not exist, or another one has its name by now.
var errGone = errors.New("it is gone")

const (
	// requestTimeout bounds a request to the API server.
	requestTimeout = 10 * time.Second
	// watchTimeout is after how many seconds the API server ends a watch. Then the object is read again.
	watchTimeout = 300
)

// objectClient reads, watches and patches one object. It needs the verbs get, watch and patch, and asks for nothing else, not even for
// the kinds that the API server has. A run that reads a definition patches a Secret as well.
type objectClient struct {
	client client.WithWatch
	http   *http.Client
	job    datamove.Job
}

func newObjectClient(config *rest.Config, job datamove.Job) (*objectClient, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = -1, -1 // A run limits itself.
	scheme := runtime.NewScheme()
	if err := velerov2.AddToScheme(scheme); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{velerov2.GroupVersion, corev1.SchemeGroupVersion})
	for _, kind := range []datamove.Kind{datamove.Upload, datamove.Download} {
		mapper.Add(velerov2.GroupVersion.WithKind(string(kind)), meta.RESTScopeNamespace)
	}
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper, HTTPClient: transport})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return &objectClient{client: c, http: transport, job: job}, nil
}

func (c *objectClient) close() { c.http.CloseIdleConnections() }

// empty returns an object of the kind, with the name and the namespace.
func (c *objectClient) empty() client.Object {
	metadata := metav1.ObjectMeta{Namespace: c.job.Namespace, Name: c.job.Name}
	if c.job.Kind == datamove.Upload {
		return &velerov2.DataUpload{ObjectMeta: metadata}
	}
	return &velerov2.DataDownload{ObjectMeta: metadata}
}

// view returns what a run needs of an object, or errGone if it is another one.
func (c *objectClient) view(o runtime.Object) (object, error) {
	var out object
	var metadata *metav1.ObjectMeta
	switch o := o.(type) {
	case *velerov2.DataUpload:
		metadata, out.phase, out.cancel, out.progress = &o.ObjectMeta, o.Status.Phase, o.Spec.Cancel, o.Status.Progress
		out.blockSize = o.Spec.DataMoverConfig[datamove.ConfigBlockSize]
	case *velerov2.DataDownload:
		metadata, out.phase, out.cancel, out.progress = &o.ObjectMeta, o.Status.Phase, o.Spec.Cancel, o.Status.Progress
	default:
		return out, fmt.Errorf("the API server sent a %T", o)
	}
	if metadata.UID != c.job.UID {
		return out, errGone
	}
	out.version, out.report = metadata.ResourceVersion, metadata.Annotations[datamove.AnnotationReport]
	out.note = metadata.Annotations[datamove.AnnotationNote]
	out.counted = datamove.CountedPod(metadata.Annotations[datamove.AnnotationDriver])
	out.cancel = out.cancel || metadata.DeletionTimestamp != nil || out.phase == velerov2.PhaseCanceling
	return out, nil
}

// read returns the object, or errGone.
func (c *objectClient) read(ctx context.Context) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := c.empty()
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return object{}, c.explain("read", err)
	}
	return c.view(o)
}

// watch calls note with the object whenever it changes, until the watch ends. opened is called once no change can be missed any more.
// The error is errGone if the object was deleted.
func (c *objectClient) watch(ctx context.Context, opened func() error, note func(object)) error {
	var list client.ObjectList = &velerov2.DataDownloadList{}
	if c.job.Kind == datamove.Upload {
		list = &velerov2.DataUploadList{}
	}
	seconds := int64(watchTimeout)
	// Without a version: that of an object that has not changed for long is too old to watch from.
	w, err := c.client.Watch(ctx, list, client.InNamespace(c.job.Namespace), &client.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", c.job.Name), Raw: &metav1.ListOptions{TimeoutSeconds: &seconds},
	})
	if err != nil {
		return c.explain("watch", err)
	}
	defer w.Stop()
	if err := opened(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if err := c.handleEvent(event, note); err != nil {
				return err
			}
		}
	}
}

func (c *objectClient) handleEvent(event watch.Event, note func(object)) error {
	if event.Type == watch.Error {
		return c.explain("watch", apierrors.FromObject(event.Object))
	}
	if event.Type == watch.Bookmark {
		return nil
	}
	o, err := c.view(event.Object)
	switch {
	case err != nil:
		return err
	case event.Type == watch.Deleted:
		return errGone
	}
	note(o)
	return nil
}

// patch changes fields of the object, by their names in JSON, and returns the object. With a version, the object must still have it:
// otherwise the error is a conflict. The error is errGone if the object is gone.
func (c *objectClient) patch(ctx context.Context, version string, metadata, status map[string]any) (object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// The API server refuses to change a UID: another object of the same name stays as it is.
	fields := map[string]any{"uid": c.job.UID}
	for key, value := range metadata {
		fields[key] = value
	}
	if version != "" {
		fields["resourceVersion"] = version
	}
	body := map[string]any{"metadata": fields}
	if status != nil {
		body["status"] = status
	}
	text, err := json.Marshal(body)
	if err != nil {
		return object{}, err
	}
	o := c.empty()
	if err := c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, text)); err != nil {
		return object{}, c.explain("patch", err)
	}
	return c.view(o)
}

func (c *objectClient) explain(verb string, err error) error {
	if apierrors.IsNotFound(err) {
		return errGone
	}
	return fmt.Errorf("%s %s %s/%s: %w", verb, c.job.Kind, c.job.Namespace, c.job.Name, err)
}
