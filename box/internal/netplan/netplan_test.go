package netplan

import (
	"net/netip"
	"testing"
)

func prefixes(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		taken []netip.Prefix
		want  string
	}{
		"free":                     {nil, "10.213.0.0/16"},
		"default route":            {prefixes("0.0.0.0/0"), "10.213.0.0/16"},
		"smaller network inside":   {prefixes("10.213.7.0/24"), "10.214.0.0/16"},
		"larger networks around":   {prefixes("10.192.0.0/10"), "10.100.0.0/16"},
		"unrelated":                {prefixes("192.168.0.0/16", "10.96.0.0/12"), "10.213.0.0/16"},
		"wraps to the lower half":  {prefixes("10.208.0.0/12", "10.224.0.0/11"), "10.100.0.0/16"},
		"another box is beside it": {prefixes("10.213.0.0/24", "10.213.65.0/24", "10.213.128.0/20"), "10.214.0.0/16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Choose(tc.taken)
			if err != nil || p.Base.String() != tc.want {
				t.Errorf("got %s, %v; want %s", p.Base, err, tc.want)
			}
		})
	}
}

func TestChooseFails(t *testing.T) {
	t.Parallel()
	if p, err := Choose(prefixes("10.0.0.0/8")); err == nil {
		t.Errorf("chose %s although all of 10/8 is taken", p.Base)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, p := range []netip.Prefix{{}, netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/16")} {
		if _, err := New(p); err == nil {
			t.Errorf("%s is accepted", p)
		}
	}
}

// The parts of a plan are within its network and do not overlap.
func TestParts(t *testing.T) {
	t.Parallel()
	p, err := New(netip.MustParsePrefix("10.50.1.2/16"))
	if err != nil {
		t.Fatal(err)
	}
	parts := []netip.Prefix{p.Bridge().Masked(), p.AllPods(), p.Services()}
	for i, a := range parts {
		if !p.Base.Contains(a.Addr()) || a.Bits() < p.Base.Bits() {
			t.Errorf("%s is not in %s", a, p.Base)
		}
		for _, b := range parts[i+1:] {
			if a.Overlaps(b) {
				t.Errorf("%s overlaps %s", a, b)
			}
		}
	}
	for i := 1; i <= MaxNodes; i++ {
		if pods := p.Pods(i); !p.AllPods().Contains(pods.Addr()) || i > 1 && pods.Overlaps(p.Pods(i-1)) {
			t.Errorf("the pods of node %d: %s", i, pods)
		}
		if !p.Bridge().Contains(p.Node(i).Addr()) || p.Node(i).Addr() == p.Bridge().Addr() {
			t.Errorf("node %d is %s on %s", i, p.Node(i), p.Bridge())
		}
	}
	if !p.Services().Contains(p.DNS()) || !p.Services().Contains(p.APIService()) {
		t.Errorf("%s or %s is not in %s", p.DNS(), p.APIService(), p.Services())
	}
}
