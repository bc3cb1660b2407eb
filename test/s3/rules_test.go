package s3

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func scripted(seed uint64, rules ...Rule) *Faults {
	f := &Faults{random: rand.New(rand.NewPCG(seed, 0))}
	f.Set(rules...)
	return f
}

// fates returns a letter for each request: that of the rule whose fault applied to it, or a dot.
func fates(f *Faults, requests ...string) string {
	var b strings.Builder
	for _, line := range requests {
		method, target, _ := strings.Cut(line, " ")
		rule, fault := f.choose(httptest.NewRequest(method, target, http.NoBody))
		if fault == nil {
			b.WriteByte('.')
		} else {
			b.WriteByte("abc"[rule])
		}
	}
	return b.String()
}

func TestRules(t *testing.T) {
	t.Parallel()
	list := "GET /bucket/?list-type=2&prefix=p"
	requests := []string{"PUT /bucket/p1", "GET /bucket/p1", "PUT /bucket/p2", "PUT /bucket/q", list, "PUT /bucket/p3", "PUT /bucket"}
	for name, test := range map[string]struct {
		rules []Rule
		want  string
	}{
		"none":              {nil, "......."},
		"every request":     {[]Rule{{}}, "aaaaaaa"},
		"a method":          {[]Rule{{Method: http.MethodPut}}, "a.aa.aa"},
		"a key":             {[]Rule{{Key: "p"}}, "aaa..a."},
		"a method of a key": {[]Rule{{Method: http.MethodPut, Key: "p"}}, "a.a..a."},
		"anything else":     {[]Rule{{Match: func(r *http.Request) bool { return r.URL.Query().Has("list-type") }}}, "....a.."},
		"the second":        {[]Rule{{Method: http.MethodPut, Key: "p", Skip: 1, Times: 1}}, "..a...."},
		"all but the first": {[]Rule{{Method: http.MethodPut, Key: "p", Skip: 1}}, "..a..a."},
		"at most two":       {[]Rule{{Method: http.MethodPut, Times: 2}}, "a.a...."},
		"the first decides": {[]Rule{{Key: "p", Times: 1}, {Key: "p"}}, "abb..b."},
		"what is taken is not counted by the next": {[]Rule{{Key: "p", Times: 1}, {Key: "p", Skip: 1}}, "a.b..b."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i := range test.rules {
				test.rules[i].Fault = Reset
			}
			f := scripted(1, test.rules...)
			if got := fates(f, requests...); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			for i := range test.rules {
				if got, want := f.Fired(i), strings.Count(test.want, string("abc"[i])); got != want {
					t.Errorf("rule %d: %d faults, want %d", i, got, want)
				}
			}
		})
	}
}

func TestASeedRepeatsARun(t *testing.T) {
	t.Parallel()
	requests := make([]string, 1000)
	for i := range requests {
		requests[i] = "PUT /bucket/key"
	}
	run := func(seed uint64) string {
		return fates(scripted(seed, Rule{Probability: 0.25, Fault: Reset}), requests...)
	}
	first := run(7)
	if run(7) != first || run(8) == first {
		t.Error("the seed does not decide")
	}
	if n := strings.Count(first, "a"); n < 150 || n > 350 {
		t.Errorf("%d of 1000 with a probability of a quarter", n)
	}
}

func TestAMissingProgramNamesItsTarget(t *testing.T) {
	t.Setenv("VARVE_PEERS", t.TempDir())
	_, err := find("versitygw")
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "make peers") {
		t.Error(err)
	}
}
