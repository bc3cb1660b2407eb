package proc

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 200"
	for line, want := range map[string]struct {
		state byte
		start uint64
		bad   bool
	}{
		"7 (sh) S" + rest:             {'S', 4242, false},
		"7 (a) b) (c) Z" + rest:       {'Z', 4242, false}, // a name may contain anything
		"7 (sh) S 1 2":                {bad: true},
		"":                            {bad: true},
		"7 (sh) S 1 1 1 0 -1 4 1 2 3": {bad: true},
	} {
		state, start, err := parseStat([]byte(line))
		if (err != nil) != want.bad || state != want.state || start != want.start {
			t.Errorf("%q: %c, %d, %v", line, state, start, err)
		}
	}
}

func TestKillOnlyTheRecorded(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // it is killed, so an error is expected
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := id
	other.Start++ // an earlier process with the same PID
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := other.Kill(ctx); err != nil || !id.Alive() || other.Alive() {
		t.Fatalf("the wrong process was touched (%v)", err)
	}
	if err := id.Kill(ctx); err != nil || id.Alive() {
		t.Fatalf("the process lives on: %v", err)
	}
	<-ended
	if err := id.Kill(ctx); err != nil {
		t.Errorf("killing what is gone: %v", err)
	}
}

func TestAlive(t *testing.T) {
	t.Parallel()
	id, err := Of(os.Getpid())
	if err != nil || !id.Alive() {
		t.Fatalf("this process is not alive: %v", err)
	}
	id.Boot = "another"
	if id.Alive() || (ID{}).Alive() {
		t.Error("a process of another boot, or none, is alive")
	}
}
