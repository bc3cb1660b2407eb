package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	backupv1alpha1 "github.com/varvebackup/varve/api/backup/v1alpha1"
)

// teller reports what the demo does, with the time since its start.
type teller struct {
	out      io.Writer
	terminal bool
	start    time.Time
}

func newTeller(out *os.File) *teller {
	return &teller{out: out, terminal: term.IsTerminal(int(out.Fd())), start: time.Now()}
}

// tellStep reports the next step.
func (t *teller) tellStep(format string, args ...any) {
	fmt.Fprintf(t.out, "[%6.1fs] %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
}

// tellBackup returns a function that shows the progress of a backup, and one that ends the display. On a terminal it is a
// bar, elsewhere a line for each change of phase or message.
func (t *teller) tellBackup(name string) (show func(*backupv1alpha1.VirtualMachineBackupStatus), done func()) {
	if !t.terminal {
		last := ""
		return func(s *backupv1alpha1.VirtualMachineBackupStatus) {
			line := fmt.Sprintf("%s: %s", name, describePhase(s))
			if line != last {
				t.tellStep("    %s", line)
			}
			last = line
		}, func() {}
	}
	progress := mpb.New(mpb.WithOutput(t.out), mpb.WithWidth(40))
	phase := ""
	bar := progress.AddBar(1, mpb.PrependDecorators(decor.Name("    "+name+" "), decor.Any(func(decor.Statistics) string { return phase })),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")))
	return func(s *backupv1alpha1.VirtualMachineBackupStatus) {
			phase = fmt.Sprintf("%-10s", s.Phase)
			if s.Progress != nil && s.Progress.TotalBytes > 0 {
				bar.SetTotal(s.Progress.TotalBytes, false)
				bar.SetCurrent(s.Progress.ProcessedBytes)
			}
		}, func() {
			bar.SetTotal(-1, true)
			progress.Wait()
		}
}

// describePhase returns the phase of a backup and its message. Some messages begin with the name of the phase.
func describePhase(s *backupv1alpha1.VirtualMachineBackupStatus) string {
	if strings.HasPrefix(s.Message, string(s.Phase)) {
		return s.Message
	}
	return fmt.Sprintf("%s %s", s.Phase, s.Message)
}
