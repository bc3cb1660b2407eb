package admission

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	harvesterv1 "github.com/varvebackup/varve/api/harvester/v1beta1"
	"github.com/varvebackup/varve/test/gen"
)

// pagingReader lists schedules a page at a time, and notes what it is asked.
type pagingReader struct {
	client.Reader
	schedules []*harvesterv1.ScheduleVMBackup
	err       error
	pages     int
	limit     int64
}

func (p *pagingReader) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	p.pages++
	p.limit = max(p.limit, o.Limit)
	if p.err != nil {
		return p.err
	}
	from := 0
	if o.Continue != "" {
		var err error
		if from, err = strconv.Atoi(o.Continue); err != nil {
			return err
		}
	}
	until := min(from+int(o.Limit), len(p.schedules))
	list := into.(*harvesterv1.ScheduleVMBackupList)
	for _, s := range p.schedules[from:until] {
		list.Items = append(list.Items, *s)
	}
	if until < len(p.schedules) {
		list.Continue = strconv.Itoa(until)
	}
	return nil
}

// scheduleRequest returns a request that creates a schedule.
func scheduleRequest(t *testing.T, o *harvesterv1.ScheduleVMBackup) admission.Request {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: admissionv1.Create, Namespace: o.Namespace, Object: runtime.RawExtension{Raw: raw},
	}}
}

func newScheduleTimes(t *testing.T, reader client.Reader) *scheduleTimes {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := harvesterv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return &scheduleTimes{schedules: reader, decoder: admission.NewDecoder(scheme)}
}

// scheduleOf returns a schedule with a cron expression, and with annotations by pairs.
func scheduleOf(namespace, name, cron string, annotations ...string) *harvesterv1.ScheduleVMBackup {
	return gen.Schedule(gen.Meta(namespace, name), "vm", func(o *harvesterv1.ScheduleVMBackup) {
		o.Spec.Cron, o.Annotations = cron, map[string]string{}
		for i := 0; i < len(annotations); i += 2 {
			o.Annotations[annotations[i]] = annotations[i+1]
		}
	})
}

func TestScheduleTimes(t *testing.T) {
	t.Parallel()
	others := []*harvesterv1.ScheduleVMBackup{
		scheduleOf("ns", "nightly", "0 1 * * *"), scheduleOf("secret", "payroll", "30 3 * * *"),
		scheduleOf("ns", "unchecked", "0 5 * * *", harvesterv1.AnnotationSkipCronCheck, "enable"),
	}
	const unchecked = harvesterv1.AnnotationSkipCronCheck
	for name, c := range map[string]struct {
		schedule *harvesterv1.ScheduleVMBackup
		refusal  string
		pages    int
	}{
		"free":            {scheduleOf("ns", "s", "10 1 * * *"), "", 1},
		"itself, changed": {scheduleOf("ns", "nightly", "1 1 * * *"), "", 1},
		"near": {
			scheduleOf("ns", "s", "5 1 * * *"),
			`spec.cron: "5 1 * * *" is due within 5m0s of ScheduleVMBackup nightly`, 1,
		},
		"near a stranger": {
			scheduleOf("ns", "s", "31 3 * * *"),
			`spec.cron: "31 3 * * *" is due within 1m0s of a schedule in another namespace`, 1,
		},
		"near one that is not checked": {scheduleOf("ns", "s", "0 5 * * *"), "", 1},
		"near, not checked":            {scheduleOf("ns", "s", "0 1 * * *", unchecked, "enable"), "", 0},
		"too often": {
			scheduleOf("ns", "s", "0,30 1 * * *"), `is due 30m0s apart, and backups need 1h0m0s or more`, 0,
		},
		"too often, not checked": {scheduleOf("ns", "s", "0,30 1 * * *", unchecked, "enable"), "", 0},
		"unreadable": {
			scheduleOf("ns", "s", "0 25 * * *", unchecked, "enable"),
			`spec.cron: schedule "0 25 * * *": hour "25": use 0-23`, 0,
		},
		"no such zone": {
			scheduleOf("ns", "s", "0 7 * * *", harvesterv1.AnnotationTimeZone, "Europe/Atlantis"),
			`time zone "Europe/Atlantis" is unknown`, 0,
		},
		"jitter": {
			scheduleOf("ns", "s", "0 7 * * *", harvesterv1.AnnotationJitter, "soon"), harvesterv1.AnnotationJitter, 0,
		},
		"what stays": {
			scheduleOf("ns", "s", "0 7 * * *", harvesterv1.AnnotationKeepDaily, "-1"), harvesterv1.AnnotationKeepDaily, 0,
		},
		"what stays, not checked": {
			scheduleOf("ns", "s", "0 7 * * *", harvesterv1.AnnotationKeepWithin, "1 fortnight", unchecked, "enable"),
			harvesterv1.AnnotationKeepWithin, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := &pagingReader{schedules: others}
			response := newScheduleTimes(t, reader).Handle(t.Context(), scheduleRequest(t, c.schedule))
			if response.Allowed != (c.refusal == "") || reader.pages != c.pages {
				t.Errorf("allowed: %t, after %d pages, want %d", response.Allowed, reader.pages, c.pages)
			}
			if c.refusal == "" {
				return
			}
			if response.Result.Code != http.StatusUnprocessableEntity ||
				!strings.Contains(response.Result.Message, c.refusal) {
				t.Errorf("refused with %+v, want %q", response.Result, c.refusal)
			}
			if text := response.Result.Message; strings.Contains(text, "secret") || strings.Contains(text, "payroll") {
				t.Errorf("it tells of another namespace: %s", text)
			}
		})
	}
}

// What does not change when a schedule is due is no reason to look at that: it may be from before the webhook.
func TestScheduleTimes_unchanged(t *testing.T) {
	t.Parallel()
	near := scheduleOf("ns", "s", "5 1 * * *")
	reader := &pagingReader{schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf("ns", "nightly", "0 1 * * *"), near}}
	for name, c := range map[string]struct {
		before  *harvesterv1.ScheduleVMBackup
		allowed bool
	}{
		"it keeps more":      {near, true},
		"it is due then now": {scheduleOf("ns", "s", "5 4 * * *"), false},
	} {
		after := scheduleOf("ns", "s", "5 1 * * *", harvesterv1.AnnotationKeepDaily, "7")
		request := scheduleRequest(t, after)
		request.Operation, request.OldObject = admissionv1.Update, scheduleRequest(t, c.before).Object
		if r := newScheduleTimes(t, reader).Handle(t.Context(), request); r.Allowed != c.allowed {
			t.Errorf("%s: %+v", name, r.Result)
		}
	}
	often := scheduleRequest(t, scheduleOf("ns", "s", "* * * * *", harvesterv1.AnnotationKeepDaily, "7"))
	often.Operation, often.OldObject = admissionv1.Update, scheduleRequest(t, scheduleOf("ns", "s", "* * * * *")).Object
	if r := newScheduleTimes(t, reader).Handle(t.Context(), often); !r.Allowed {
		t.Errorf("one that was due too often before: %+v", r.Result)
	}
}

// However many schedules there are, a bounded number of them is in memory, and each is looked at.
func TestScheduleTimes_readsPages(t *testing.T) {
	t.Parallel()
	reader := &pagingReader{}
	for i := range 2*schedulePage + 1 {
		reader.schedules = append(reader.schedules, scheduleOf("ns", "s"+strconv.Itoa(i), "0 1 * * *"))
	}
	last := reader.schedules[len(reader.schedules)-1]
	last.Spec.Cron = "0 7 * * *"
	response := newScheduleTimes(t, reader).Handle(t.Context(), scheduleRequest(t, scheduleOf("ns", "s", "1 7 * * *")))
	if response.Allowed || !strings.Contains(response.Result.Message, last.Name) {
		t.Errorf("the last schedule is not looked at: %+v", response.Result)
	}
	if reader.pages != 3 || reader.limit != schedulePage {
		t.Errorf("%d pages of at most %d", reader.pages, reader.limit)
	}
}

// A request has no time without end, and what cannot be read refuses nothing for good.
func TestScheduleTimes_ends(t *testing.T) {
	t.Parallel()
	request := scheduleRequest(t, scheduleOf("ns", "s", "0 1 * * *"))
	gone := errors.New("the API server is gone")
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx    context.Context
		reader *pagingReader
		want   string
	}{
		"the list fails": {t.Context(), &pagingReader{err: gone}, gone.Error()},
		"the time is up": {
			ended, &pagingReader{schedules: []*harvesterv1.ScheduleVMBackup{scheduleOf("ns", "o", "0 1 * * *")}},
			context.Canceled.Error(),
		},
	} {
		response := newScheduleTimes(t, c.reader).Handle(c.ctx, request)
		if response.Allowed || response.Result.Code != http.StatusInternalServerError ||
			!strings.Contains(response.Result.Message, c.want) {
			t.Errorf("%s: %+v", name, response.Result)
		}
	}
}

// A message that quotes the request does not grow with it.
func TestScheduleTimes_messageIsBounded(t *testing.T) {
	t.Parallel()
	o := scheduleOf("ns", "s", "0 1 * * *", harvesterv1.AnnotationJitter, strings.Repeat("x", 100_000))
	response := newScheduleTimes(t, &pagingReader{}).Handle(t.Context(), scheduleRequest(t, o))
	if n := len(response.Result.Message); response.Allowed || n == 0 || n > refusalBytes {
		t.Errorf("a message of %d bytes", n)
	}
}
