package datamover

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/datamove/settings"
)

// crew is what the handler of node-a sees of the handlers' pods.
type crew struct {
	t     *testing.T
	m     *Mover
	pods  client.Client
	nodes []*corev1.Node
	clock *testingclock.FakePassiveClock
}

func newCrew(t *testing.T, names ...string) *crew {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &crew{t: t, pods: fake.NewClientBuilder().WithScheme(scheme).WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.NodeName}
	}).Build()}
	for _, name := range names {
		n := node(name, nil)
		c.nodes = append(c.nodes, n)
		if err := c.pods.Create(t.Context(), n.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		c.start(name, true)
	}
	c.restart()
	return c
}

// restart starts the handler of node-a anew.
func (c *crew) restart() {
	c.clock = testingclock.NewFakePassiveClock(now)
	c.m = &Mover{NodeName: "node-a", Namespace: "varve", Cached: c.pods, Clock: c.clock}
}

// start makes the pod of a node's handler.
func (c *crew) start(name string, ready bool, edit ...func(*corev1.Pod)) {
	c.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "varve-handler-" + name}}
	pod.Spec.NodeName, pod.Spec.ServiceAccountName = name, "varve-handler"
	condition := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	if ready {
		condition.Status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{condition}
	for _, e := range edit {
		e(pod)
	}
	if err := c.pods.Create(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crew) stop(name string) {
	c.t.Helper()
	if err := c.pods.Delete(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "varve", Name: "varve-handler-" + name}}); err != nil {
		c.t.Fatal(err)
	}
}

// lost lets time pass and returns the nodes whose handlers are lost by then.
func (c *crew) lost(after time.Duration) string {
	c.t.Helper()
	c.clock.SetTime(c.clock.Now().Add(after))
	if err := c.m.lookForHandlers(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	away := c.m.handlers.away()
	var lost []string
	for _, n := range c.nodes {
		if away.lost(n.Name, c.clock.Now()) {
			lost = append(lost, n.Name)
		}
	}
	return strings.Join(lost, " ")
}

func (c *crew) want(after time.Duration, want string) {
	c.t.Helper()
	if got := c.lost(after); got != want {
		c.t.Errorf("lost %q, want %q", got, want)
	}
}

func TestHandlers_areLostAfterAMinute(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b", "node-c")
	c.want(0, "")
	c.stop("node-b")
	c.want(0, "")
	c.want(59*time.Second, "")
	c.want(time.Second, "node-b")
	c.start("node-b", false) // such as one whose image cannot be pulled
	c.want(time.Hour, "node-b")
	c.stop("node-b")
	c.start("node-b", true)
	c.want(0, "")
	c.want(time.Hour, "")
}

// Each handler is away for 20 s, three times in a row.
func TestHandlers_rollingUpdateLosesNone(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b", "node-c", "node-d")
	for range 3 {
		for _, name := range []string{"node-b", "node-c", "node-d"} {
			c.stop(name)
			c.want(0, "")
			c.start(name, false)
			c.want(20*time.Second, "")
			c.stop(name)
			c.start(name, true)
			c.want(0, "")
		}
	}
}

// A handler that crashes again and again is away for longer each time, as the kubelet has it. As long as it is back within a minute, it takes
// what is nearest to it itself.
func TestHandlers_crashLoopIsLostBetweenStarts(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b")
	for _, away := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second} {
		c.stop("node-b")
		c.start("node-b", false)
		c.want(0, "")
		want := ""
		if away >= lostAfter {
			want = "node-b"
		}
		c.want(away, want)
		c.stop("node-b")
		c.start("node-b", true)
		c.want(0, "")
		c.want(5*time.Second, "")
	}
}

// A handler that has just started does not know how long another one has been away.
func TestHandlers_restartOfTheObserverBeginsAnew(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b")
	c.stop("node-b")
	c.want(0, "")
	c.want(59*time.Second, "")
	c.restart()
	c.want(0, "")
	c.want(59*time.Second, "")
	c.want(time.Second, "node-b")
}

// Whatever the clocks of other machines say of when a pod was made, or was Ready last, does not count.
func TestHandlers_clocksNeedNotAgree(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"late": -time.Hour, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, "node-a", "node-b")
			c.stop("node-b")
			c.start("node-b", false, func(p *corev1.Pod) {
				at := metav1.NewTime(now.Add(wrong))
				p.CreationTimestamp, p.Status.StartTime, p.Status.Conditions[0].LastTransitionTime = at, &at, at
			})
			c.want(0, "")
			c.want(59*time.Second, "")
			c.want(time.Second, "node-b")
		})
	}
}

// If no pod is Ready, something is wrong with the probes, or with who tells of them. Handlers that run all the same would take objects from
// each other.
func TestHandlers_areNotJudgedByOneThatIsNotReady(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b", "node-c")
	for _, name := range []string{"node-a", "node-b"} {
		c.stop(name)
		c.start(name, false)
	}
	c.want(0, "")
	c.want(time.Hour, "")
	c.stop("node-a")
	c.start("node-a", true)
	c.want(0, "") // whatever it was may pass for the others now
	c.want(59*time.Second, "")
	c.want(time.Second, "node-b")
}

// Installed by somebody's own manifests, handlers may run under another account: then nothing is known of them.
func TestHandlers_areNotLostIfTheyCannotBeRecognized(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b")
	for _, name := range []string{"node-a", "node-b"} {
		c.stop(name)
		c.start(name, true, func(p *corev1.Pod) { p.Spec.ServiceAccountName = "another" })
	}
	c.want(0, "")
	c.want(time.Hour, "")
}

// A process that was stopped while another node's handler was restarted finds in its cache that there is none.
func TestDriverIsBack_believesTheAPIServerAlone(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "node-a", "node-b")
	c.m.Live = c.pods
	in := base(velerov2.PhaseInProgress)
	in.Object.Driver, in.DriverNode = "node-b", NodeState{Name: "node-b", NoHandlerSince: now.Add(-time.Minute)}
	check := func(in Input, want bool) {
		t.Helper()
		d := decide(in)
		p := &pass{Reconciler: &Reconciler{Mover: c.m}, in: in}
		if got, err := p.driverIsBack(t.Context(), &d.Change); err != nil || got != want || d.Do != Write {
			t.Errorf("%v, %v, want %v; %+v", got, err, want, d)
		}
	}
	check(in, true)
	c.stop("node-b")
	check(in, false)
	c.start("node-b", false)
	check(in, false)
	c.stop("node-b")
	c.start("node-b", true)
	in.DriverNode.NotReadySince = now.Add(-time.Hour) // what runs there tells nobody
	check(in, false)
	c.m.Live = nil // nobody is asked of one's own objects
	check(base(velerov2.PhaseInProgress), false)
}

func TestHandlersAway_nextLoss(t *testing.T) {
	t.Parallel()
	a := handlersAway{"b": now.Add(-50 * time.Second), "c": now.Add(-20 * time.Second), "d": now.Add(-2 * time.Minute)}
	if got := a.nextLoss(now); got != 10*time.Second {
		t.Error(got)
	}
	if got := (handlersAway{"d": now.Add(-2 * time.Minute)}).nextLoss(now); got != 0 {
		t.Error(got)
	}
}

func TestHandlersAway_absence(t *testing.T) {
	t.Parallel()
	nodes := []*corev1.Node{node("e", nil), node("d", nil), node("c", nil), node("b", nil), node("a", nil)}
	long := now.Add(-time.Hour)
	a := handlersAway{"b": long, "c": long, "d": long, "e": long, "a": now}
	names := func(names ...string) *corev1.Pod {
		s := &corev1.NodeSelector{}
		for _, n := range names {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, nodeNamed(n).NodeSelectorTerms...)
		}
		return &corev1.Pod{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: s}}}}
	}
	bound := names("a", "b")
	bound.Spec.NodeName = "b"
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"one node":                   {names("b"), "no handler runs on node b"},
		"it is on one":               {bound, "no handler runs on node b"},
		"several":                    {names("c", "b"), "no handler runs on nodes b, c"},
		"many":                       {names("b", "c", "d", "e"), "no handler runs on any of the 4 nodes that it may run on"},
		"one of them has a handler":  {names("a", "b"), ""},
		"a node that is not there":   {names("z"), ""},
		"anywhere":                   {&corev1.Pod{}, ""},
		"the handler has just ended": {names("a"), ""},
	} {
		if got := a.absence(c.pod, nodes, now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Who may take an object if no handler runs on "silent", which is ready.
func TestMayTake_leavesNothingToHandlersThatAreLost(t *testing.T) {
	t.Parallel()
	nodes := []*corev1.Node{node("silent", nil), node("b", nil), node("c", nil)}
	idle, err := settings.Decode("concurrency: {nodes: [{nodeSelector: {}, perNode: 0}]}")
	if err != nil {
		t.Fatal(err)
	}
	usual := settings.Default()
	onNodes := func(names ...string) *corev1.NodeSelector {
		s := &corev1.NodeSelector{}
		for _, n := range names {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, nodeNamed(n).NodeSelectorTerms...)
		}
		return s
	}
	first := slices.MinFunc(nodes[1:], func(x, y *corev1.Node) int { return strings.Compare(orderOfNode(x), orderOfNode(y)) }).Name
	for name, c := range map[string]struct {
		settings *settings.Settings
		volume   volumePlace
		storage  *storagePlace
		want     string
	}{
		"a machine on the node":               {&usual, volumePlace{nodes: nodeNamed("silent"), preferred: true}, nil, "b c"},
		"a volume of it and another one":      {&usual, volumePlace{nodes: onNodes("silent", "b")}, nil, "b"},
		"a volume that only it reaches":       {&usual, volumePlace{nodes: nodeNamed("silent")}, nil, "b c"},
		"a storage of one node at a time":     {&usual, volumePlace{}, &storagePlace{oneNode: true}, first},
		"a storage that is in use on it":      {&usual, volumePlace{}, &storagePlace{oneNode: true, nodes: nodeNamed("silent")}, "b c"},
		"a volume elsewhere, a storage on it": {&usual, volumePlace{nodes: nodeNamed("b")}, &storagePlace{nodes: nodeNamed("silent")}, "b"},
		"no handler takes anything, on it":    {&idle, volumePlace{nodes: nodeNamed("silent")}, nil, ""},
	} {
		var got []string
		lost := func(n *corev1.Node) bool { return n.Name == "silent" }
		for _, self := range nodes[1:] {
			if mayTake(self, nodesThatTake(nodes, c.volume, c.storage, c.settings, lost), c.volume, c.storage) {
				got = append(got, self.Name)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v may, want %s", name, got, c.want)
		}
	}
}

func TestBothOf_selectsWhatBothSelect(t *testing.T) {
	t.Parallel()
	has := func(label string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpExists}}}
	}
	terms := func(t ...corev1.NodeSelectorTerm) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: t}
	}
	selectors := []*corev1.NodeSelector{
		nil, terms(), terms(corev1.NodeSelectorTerm{}), terms(has("x")), terms(has("x"), has("y")), terms(has("x"), corev1.NodeSelectorTerm{}),
		nodeNamed("a"), terms(has("y"), nodeNamed("b").NodeSelectorTerms[0]),
	}
	nodes := []*corev1.Node{node("a", nil), node("b", map[string]string{"x": ""}), node("c", map[string]string{"y": ""}), node("d", map[string]string{"x": "", "y": ""})}
	for i, a := range selectors {
		for j, b := range selectors {
			for _, n := range nodes {
				if got, want := selects(bothOf(a, b), n), selects(a, n) && selects(b, n); got != want {
					t.Errorf("%d and %d select %s: %v", i, j, n.Name, got)
				}
			}
		}
	}
}

func TestShrinkPod_keepsMoversAndWhatSaysThatAHandlerRuns(t *testing.T) {
	t.Parallel()
	whole := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}}}
	whole.Spec.NodeName, whole.Spec.ServiceAccountName, whole.Spec.Containers = "n", "varve-handler", []corev1.Container{{Name: "c"}}
	whole.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	mover := whole.DeepCopy()
	mover.Labels[datamove.LabelObject] = "u"
	for _, p := range []*corev1.Pod{whole, mover} {
		got, err := shrinkPod(p.DeepCopy())
		small, ok := got.(*corev1.Pod)
		if err != nil || !ok || !runsHandler(small) || len(small.Spec.Containers) != map[bool]int{false: 0, true: 1}[p == mover] {
			t.Errorf("%+v, %v", small, err)
		}
	}
}
