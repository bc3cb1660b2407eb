package cgroup

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMount(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Hierarchy{
		"cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0":                               {Mount: "/sys/fs/cgroup/cpu", Options: "cpu"},
		"cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,nosuid,nodev,noexec,cpu,cpuacct 0 0":    {Mount: "/sys/fs/cgroup/cpu,cpuacct", Options: "cpu,cpuacct"},
		"cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,name=systemd 0 0":            {Mount: "/sys/fs/cgroup/systemd", Options: "none,name=systemd"},
		"cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0":      {Mount: "/sys/fs/cgroup", V2: true},
		"cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0":                             {Mount: "/sys/fs/cgroup/unified", V2: true},
		"tmpfs /sys/fs/cgroup tmpfs rw,relatime,mode=755 0 0":                                {},
		"cgroup /sys/fs/cgroup-of-others/cpu cgroup rw,cpu 0 0":                              {},
		"cgroup /sys/fs/cgroup/x cgroup rw,cpuset,clone_children,release_agent=/bin/foo 0 0": {Mount: "/sys/fs/cgroup/x", Options: "cpuset"},
		"": {},
	} {
		got, ok := parseMount(line)
		if ok != (want.Mount != "") {
			t.Errorf("%q: recognised %v", line, ok)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q:\n%s", line, diff)
		}
	}
}

// A damaged record must never lead to the host's own groups.
func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "/", "/node1", "..", "a/../..", "a/"} {
		if err := Remove(context.Background(), name, nil); err == nil {
			t.Errorf("Remove accepts %q", name)
		}
		if _, err := Members(name); err == nil {
			t.Errorf("Members accepts %q", name)
		}
		if err := Create(name, 1); err == nil {
			t.Errorf("Create accepts %q", name)
		}
	}
}
