//go:build libvirt_dlopen

package domain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/varvebackup/varve/internal/domain/domaintest"
	"github.com/varvebackup/varve/internal/layout"
)

// A guest that breaks out of QEMU finds itself an ordinary user's process without capabilities, which can get none, and
// which QEMU's own filter of system calls confines.
func TestQEMU_isConfined(t *testing.T) {
	m := newMachine(t, 16*mib)
	m.prepare()
	m.start()
	pid := domaintest.QEMUPID(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		has[name] = strings.Join(strings.Fields(value), " ")
	}
	const none = "0000000000000000"
	for name, want := range map[string]string{
		"Uid": strings.TrimSpace(strings.Repeat(fmt.Sprint(layout.LauncherUser, " "), 4)),
		"Gid": strings.TrimSpace(strings.Repeat(fmt.Sprint(layout.LauncherGroup, " "), 4)), "Groups": "",
		"CapEff": none, "CapPrm": none, "CapInh": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1", "Seccomp": "2",
	} {
		if has[name] != want {
			t.Errorf("%s is %q, not %q", name, has[name], want)
		}
	}
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	sandbox := "-sandbox\x00on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny\x00"
	if !strings.Contains(string(arguments), sandbox) {
		t.Errorf("QEMU has no sandbox: %q", arguments)
	}
	// libvirtd starts virtlogd when its driver's configuration was not read.
	if _, err := os.Stat(layout.LibvirtRunDir + "/libvirt/virtlogd-sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("virtlogd runs beside libvirtd: %v", err)
	}
}
