package guest_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// emulator returns the command line of the launcher's QEMU, run from its root without a chroot: the version that
// Varve's guests run on. (QEMU 7.2, Debian 12's own, breaks cmpxchg16b under emulation and with it this kernel.)
func emulator(t *testing.T) []string {
	t.Helper()
	root, err := kitchen(t).LauncherDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	libraries := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	return []string{
		filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", libraries,
		filepath.Join(root, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(root, "usr/share/qemu"), "-L", filepath.Join(root, "usr/share/seabios"),
	}
}

// Time limits of a guest in tests. They are far above the measured times, so that tests do not fail on a loaded machine.
const (
	bootTimeout = 4 * time.Minute
	stopTimeout = 2 * time.Minute
)

// machine is a running guest.
type machine struct {
	t       *testing.T
	cmd     *exec.Cmd
	exited  chan error
	console string
	agent   *peer
	monitor *peer
}

// boot starts QEMU with a q35 machine with agent port, serial console and random numbers, plus the given arguments,
// and waits until the agent answers. It returns how long that took.
func boot(t *testing.T, kernel, initrd, cmdline string, args ...string) (*machine, time.Duration) {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, exited: make(chan error, 1), console: filepath.Join(dir, "console")}
	agent, monitor := filepath.Join(dir, "agent"), filepath.Join(dir, "monitor")
	qemu := emulator(t)
	args = append([]string{
		// Never KVM: /dev/kvm may exist and hang the guest. qemu64 is what libvirt gives a guest without a CPU setting.
		"-machine", "q35,accel=tcg", "-cpu", "qemu64", "-m", "384", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", kernel, "-initrd", initrd, "-append", cmdline,
		"-serial", "file:" + m.console, "-device", "virtio-rng-pci", "-device", "virtio-serial-pci",
		"-chardev", "socket,id=agent,server=on,wait=off,path=" + agent,
		"-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
		"-qmp", "unix:" + monitor + ",server=on,wait=off",
	}, args...)
	var said bytes.Buffer
	m.cmd = exec.Command(qemu[0], append(qemu[1:], args...)...)
	m.cmd.Stderr = &said
	begin := time.Now()
	if err := m.cmd.Start(); err != nil {
		t.Fatalf("start qemu: %v", err)
	}
	go func() { m.exited <- m.cmd.Wait() }()
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill() // It may have exited by itself.
		if t.Failed() {
			text, _ := os.ReadFile(m.console)
			t.Logf("qemu said: %s\nconsole:\n%s", said.String(), text)
		}
	})
	m.monitor = dial(t, monitor)
	m.monitor.read(t, time.Now().Add(bootTimeout)) // The greeting.
	m.monitor.call(t, "qmp_capabilities", nil, bootTimeout)
	m.agent = dial(t, agent)
	m.waitAgent()
	return m, time.Since(begin)
}

// waitAgent sends the agent a number until it answers, then another one, and skips all answers before that. What
// reaches the port before the agent opens it may be lost, or be answered late (guest-sync in QEMU's agent protocol).
func (m *machine) waitAgent() {
	m.t.Helper()
	const early, last = 1, 2
	deadline := time.Now().Add(bootTimeout)
	for !m.agent.returns(early, time.Now().Add(500*time.Millisecond)) {
		select {
		case err := <-m.exited:
			m.t.Fatalf("qemu ended before the agent answered: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("the agent did not answer within %v", bootTimeout)
		}
		m.agent.send(m.t, "guest-sync", map[string]any{"id": early})
	}
	m.agent.send(m.t, "guest-sync", map[string]any{"id": last})
	if !m.agent.returns(last, time.Now().Add(stopTimeout)) {
		m.t.Fatal("the agent answered once and then no more")
	}
}

// returns reads answers until one returns the number, or until the deadline.
func (p *peer) returns(number int, deadline time.Time) bool {
	for line := p.tryRead(deadline); line != nil; line = p.tryRead(deadline) {
		var answer struct{ Return int }
		if err := json.Unmarshal(line, &answer); err == nil && answer.Return == number {
			return true
		}
	}
	return false
}

// guest calls a command of the agent and decodes its result into out, unless out is nil.
func (m *machine) guest(command string, arguments, out any) {
	m.t.Helper()
	raw := m.agent.call(m.t, command, arguments, stopTimeout)
	if out == nil {
		return
	}
	if err := json.Unmarshal(raw, out); err != nil {
		m.t.Fatalf("%s returned %s: %v", command, raw, err)
	}
}

// sh runs a shell command in the guest and returns its output and exit code.
func (m *machine) sh(script string) (output string, code int) {
	m.t.Helper()
	var started struct{ PID int }
	m.guest("guest-exec", map[string]any{"path": "/bin/sh", "arg": []string{"-c", script}, "capture-output": true}, &started)
	deadline := time.Now().Add(stopTimeout)
	for time.Now().Before(deadline) {
		var status struct {
			Exited   bool
			ExitCode int    `json:"exitcode"`
			Out      string `json:"out-data"`
			Err      string `json:"err-data"`
		}
		m.guest("guest-exec-status", map[string]any{"pid": started.PID}, &status)
		if status.Exited {
			out, err := base64.StdEncoding.DecodeString(status.Out)
			if err != nil {
				m.t.Fatalf("output of %q: %v", script, err)
			}
			errOut, err := base64.StdEncoding.DecodeString(status.Err)
			if err != nil {
				m.t.Fatalf("output of %q: %v", script, err)
			}
			return string(out) + string(errOut), status.ExitCode
		}
		time.Sleep(50 * time.Millisecond)
	}
	m.t.Fatalf("%q did not end within %v", script, stopTimeout)
	return "", 0
}

// must runs a shell command that must succeed, and returns its output.
func (m *machine) must(script string) string {
	m.t.Helper()
	out, code := m.sh(script)
	if code != 0 {
		m.t.Fatalf("%q in the guest: exit code %d\n%s", script, code, out)
	}
	return out
}

// waitOff waits until the guest has powered itself off.
func (m *machine) waitOff() time.Duration {
	m.t.Helper()
	begin := time.Now()
	select {
	case err := <-m.exited:
		if err != nil {
			m.t.Fatalf("qemu: %v", err)
		}
	case <-time.After(stopTimeout):
		m.t.Fatalf("the guest did not power off within %v", stopTimeout)
	}
	return time.Since(begin)
}

// peer is a connection that uses JSON lines: QMP or the agent's protocol.
type peer struct {
	conn net.Conn
	r    *bufio.Reader
	part []byte // The beginning of an incomplete line.
}

func dial(t *testing.T, path string) *peer {
	t.Helper()
	deadline := time.Now().Add(bootTimeout)
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return &peer{conn: conn, r: bufio.NewReader(conn)}
		}
		if time.Now().After(deadline) {
			t.Fatalf("connect: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *peer) send(t *testing.T, command string, arguments any) {
	t.Helper()
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	text, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.conn, "%s\n", text); err != nil {
		t.Fatalf("send %s: %v", command, err)
	}
}

// tryRead returns the next line, or nil if none is complete at the deadline.
func (p *peer) tryRead(deadline time.Time) []byte {
	if err := p.conn.SetReadDeadline(deadline); err != nil {
		return nil
	}
	line, err := p.r.ReadBytes('\n')
	p.part = append(p.part, line...)
	if err != nil {
		return nil
	}
	line, p.part = p.part, nil
	return line
}

func (p *peer) read(t *testing.T, deadline time.Time) []byte {
	t.Helper()
	line := p.tryRead(deadline)
	if line == nil {
		t.Fatal("no answer in time")
	}
	return line
}

// call sends a command and returns its result. It skips events in between.
func (p *peer) call(t *testing.T, command string, arguments any, timeout time.Duration) json.RawMessage {
	t.Helper()
	p.send(t, command, arguments)
	deadline := time.Now().Add(timeout)
	for {
		var answer struct {
			Event  string
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		line := p.read(t, deadline)
		if err := json.Unmarshal(line, &answer); err != nil {
			t.Fatalf("%s: answer %q: %v", command, line, err)
		}
		switch {
		case answer.Event != "":
		case answer.Error != nil:
			t.Fatalf("%s: %s", command, answer.Error.Desc)
		default:
			return answer.Return
		}
	}
}
