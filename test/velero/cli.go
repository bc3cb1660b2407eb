package velero

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// cliLimit bounds one run of the CLI, which itself waits up to a minute for the server, and prints what it has then.
const cliLimit = 2 * time.Minute

// MoveData returns the flags of a backup whose snapshots are moved by a data mover.
func MoveData(mover string) []string {
	return []string{"--snapshot-move-data", "--data-mover", mover}
}

// Command runs the CLI, and returns what it prints.
func (s *Server) Command(ctx context.Context, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cliLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, arguments...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, // the CLI keeps its configuration there
		"KUBECONFIG=" + s.Kubeconfig, "VELERO_NAMESPACE=" + s.Namespace, "NO_COLOR=1",
	}
	output, err := cmd.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("velero %s: %w: %s", strings.Join(arguments, " "), err, output)
	}
	return string(output), nil
}

// Run runs the CLI, and ends the test if it fails.
func (s *Server) Run(tb testing.TB, arguments ...string) string {
	tb.Helper()
	output, err := s.Command(context.WithoutCancel(tb.Context()), arguments...)
	if err != nil {
		tb.Fatal(err)
	}
	return output
}

// Backup creates a backup, as `velero backup create NAME FLAGS...` does.
func (s *Server) Backup(tb testing.TB, name string, flags ...string) {
	tb.Helper()
	s.Run(tb, append([]string{"backup", "create", name}, flags...)...)
}

// Restore creates a restore of a backup, as `velero restore create NAME --from-backup BACKUP FLAGS...` does.
func (s *Server) Restore(tb testing.TB, name, backup string, flags ...string) {
	tb.Helper()
	s.Run(tb, append([]string{"restore", "create", name, "--from-backup", backup}, flags...)...)
}

// Describe returns what `velero backup describe NAME --details`, or the same of a restore, prints.
func (s *Server) Describe(tb testing.TB, kind, name string) string {
	tb.Helper()
	return s.Run(tb, kind, "describe", name, "--details")
}

// Logs returns the log of a backup or a restore that has ended.
func (s *Server) Logs(tb testing.TB, kind, name string) string {
	tb.Helper()
	return s.Run(tb, kind, "logs", name)
}
