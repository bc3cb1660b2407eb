package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// labelled makes a restore point of one disk, and returns its ID.
func labelled(t *testing.T, r *Repository, path, group string, labels map[string]string) string {
	t.Helper()
	disk := &memory{data: []byte("varve " + path)}
	source := Source{Host: "host", User: "varve", Path: path}
	return mustBackUp(t, r, Request{Source: source, Time: time.Unix(1, 0), Group: group, Labels: labels, Disks: []DiskSource{disk.source(false)}}).ID
}

func TestLabels_selectRestorePoints(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	root := labelled(t, r, "/web/root", "web-monday", map[string]string{"varvebackup.io/upload": "a1", "kept": ""})
	data := labelled(t, r, "/web/data", "web-monday", map[string]string{"varvebackup.io/upload": "a2", "kept": "für immer"})
	other := labelled(t, r, "/mail/root", "mail-monday", map[string]string{"varvebackup.io/upload": "b1"})
	plain := labelled(t, r, "/plain", "", nil)
	fresh := open(t, config)
	for name, c := range map[string]struct {
		filter Filter
		want   []string
	}{
		"all":                  {Filter{}, []string{root, data, other, plain}},
		"a group":              {Filter{Group: "web-monday"}, []string{root, data}},
		"another group":        {Filter{Group: "mail-monday"}, []string{other}},
		"no such group":        {Filter{Group: "web"}, nil},
		"a label":              {Filter{Labels: map[string]string{"varvebackup.io/upload": "a2"}}, []string{data}},
		"an empty label":       {Filter{Labels: map[string]string{"kept": ""}}, []string{root}},
		"two labels":           {Filter{Labels: map[string]string{"kept": "", "varvebackup.io/upload": "a2"}}, nil},
		"a group and a label":  {Filter{Group: "web-monday", Labels: map[string]string{"kept": "für immer"}}, []string{data}},
		"a group and a source": {Filter{Group: "web-monday", Source: &Source{Host: "host", User: "varve", Path: "/web/root"}}, []string{root}},
	} {
		points, err := fresh.ListSelected(t.Context(), c.filter)
		var got []string
		for _, p := range points {
			got = append(got, p.ID)
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v: %v", name, got, c.want, err)
		}
	}
}

// Labels stay when the manifest is replaced, and come back from the record.
func TestLabels_stayWithTheRestorePoint(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	labels := map[string]string{"a": "1", "b": "2"}
	id := labelled(t, r, "/web", "monday", labels)
	check := func(when string, p *RestorePoint, err error) {
		t.Helper()
		if err != nil || p.Group != "monday" || !maps.Equal(p.Labels, labels) {
			t.Fatalf("%s: %+v, %v", when, p, err)
		}
	}
	p, err := r.Pin(t.Context(), id, []string{"pin"}, nil)
	check("pinned", p, err)
	p, err = open(t, config).Get(t.Context(), id)
	check("in another process", p, err)
	same(t, r, p, []byte("varve /web"))
	stored, err := r.conn.FindPoint(t.Context(), id)
	if err == nil {
		err = r.conn.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error { return stored.Remove(ctx, w) })
	}
	if err != nil {
		t.Fatal(err)
	}
	lost, err := r.Lost(t.Context())
	if err != nil || len(lost) != 1 {
		t.Fatalf("%v, %v", lost, err)
	}
	check("lost", lost[0], nil)
	if report, err := Repair(t.Context(), config, testPassword, false); err != nil || !slices.Equal(report.Points, []string{id}) {
		t.Fatalf("%+v, %v", report, err)
	}
	p, err = open(t, config).Get(t.Context(), id)
	check("repaired", p, err)
}

// Without labels, the manifest is what it always was. With them, it has a tag for each and nothing else.
func TestLabels_areTagsOfTheManifest(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	for _, c := range []struct {
		id   string
		want map[string]string
	}{
		{labelled(t, r, "/plain", "", nil), map[string]string{}},
		{labelled(t, r, "/web", "g", map[string]string{"k": "v"}), map[string]string{"tag:varve-group": "g", "tag:varve-label-k": "v"}},
	} {
		s, err := r.conn.FindPoint(t.Context(), c.id)
		if err != nil {
			t.Fatal(err)
		}
		c.want["tag:varve"], c.want["tag:varve-id"] = "1", c.id
		if diff := cmp.Diff(c.want, s.Manifest.Tags); diff != "" {
			t.Error(diff)
		}
		if about := s.Manifest.Description; strings.Contains(about, "group") || strings.Contains(about, "label") {
			t.Errorf("the description has more: %s", about)
		}
	}
}

func TestLabels_haveLimits(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range MaxLabels {
		many[fmt.Sprintf("key-%d", i)] = strings.Repeat("v", MaxLabelValueBytes)
	}
	for name, c := range map[string]struct {
		group  string
		labels map[string]string
		bad    bool
	}{
		"none":                 {},
		"as many as possible":  {group: strings.Repeat("g", MaxGroupBytes), labels: many},
		"a long key":           {labels: map[string]string{strings.Repeat("k", MaxLabelKeyBytes): ""}},
		"a Kubernetes label":   {labels: map[string]string{"app.kubernetes.io/part-of": "web_1.2"}},
		"a UID as a group":     {group: "0f8a7d26-3a35-4bd5-bd3b-2b3f9ec1a9c5"},
		"a longer group":       {group: strings.Repeat("g", MaxGroupBytes+1), bad: true},
		"a group with a space": {group: "a b", bad: true},
		"a longer key":         {labels: map[string]string{strings.Repeat("k", MaxLabelKeyBytes+1): ""}, bad: true},
		"an empty key":         {labels: map[string]string{"": "v"}, bad: true},
		"a key with a colon":   {labels: map[string]string{"a:b": "v"}, bad: true},
		"a key with a dash":    {labels: map[string]string{"a-": "v"}, bad: true},
		"a key in UTF-8":       {labels: map[string]string{"ä": "v"}, bad: true},
		"a longer value":       {labels: map[string]string{"k": strings.Repeat("v", MaxLabelValueBytes+1)}, bad: true},
		"a value of two lines": {labels: map[string]string{"k": "a\nb"}, bad: true},
		"a value that deletes": {labels: map[string]string{"k": "a\x7f"}, bad: true},
		"a value in red":       {labels: map[string]string{"k": "\u009b31m"}, bad: true},
		"a value in no text":   {labels: map[string]string{"k": "a\xff"}, bad: true},
	} {
		disk := &memory{data: []byte("varve")}
		q := Request{Source: testSource, Group: c.group, Labels: c.labels, Disks: []DiskSource{disk.source(false)}}
		q = q.withDefaults()
		if err := q.validate(); errors.Is(err, errclass.Invalid) != c.bad || (err != nil) != c.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
	many["one more"] = ""
	if err := engine.CheckLabels("", many); !errors.Is(err, errclass.Invalid) {
		t.Errorf("too many: %v", err)
	}
}

// If a backup was repeated and its first attempt arrives late, the labels of the later attempt count, as everything else of it does.
func TestLabels_areThoseOfTheNewestManifest(t *testing.T) {
	t.Parallel()
	r, config := newRepository(t)
	disk := &memory{data: []byte("varve")}
	q := Request{
		ID: "0123456789abcdef0123456789abcdef", Source: testSource, Time: time.Unix(1, 0), Group: "g", Labels: map[string]string{"attempt": "1"}, Disks: []DiskSource{disk.source(false)},
	}
	again := q
	again.Labels = map[string]string{"attempt": "2"}
	q.flushing = func() { mustBackUp(t, open(t, config), again) }
	mustBackUp(t, r, q)
	fresh := open(t, config)
	for attempt, want := range map[string]int{"1": 0, "2": 1} {
		points, err := fresh.ListSelected(t.Context(), Filter{Group: "g", Labels: map[string]string{"attempt": attempt}})
		if err != nil || len(points) != want {
			t.Errorf("attempt %s: %d restore points, %v", attempt, len(points), err)
		}
	}
}

// relabellingReader changes labels when it is read.
type relabellingReader struct {
	*memory
	labels map[string]string
}

func (r relabellingReader) ReadAt(ctx context.Context, p []byte, offset int64) error {
	r.labels["k"] = "a\nb"
	return r.memory.ReadAt(ctx, p, offset)
}

func TestLabels_areThoseThatWereChecked(t *testing.T) {
	t.Parallel()
	r, _ := newRepository(t)
	disk, labels := &memory{data: []byte("varve")}, map[string]string{"k": "v"}
	source := disk.source(false)
	source.Reader = relabellingReader{disk, labels}
	p := mustBackUp(t, r, Request{Source: testSource, Time: time.Unix(1, 0), Labels: labels, Disks: []DiskSource{source}})
	if p.Labels["k"] != "v" {
		t.Errorf("%q", p.Labels)
	}
}
