package progress

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/varvebackup/varve/internal/cli/human"
)

// Report is the progress at one moment. docs/cli.md documents its JSON names, which must not change.
type Report struct {
	// Name is the object.
	Name string `json:"name"`
	// Phase is its state in one word.
	Phase string `json:"phase,omitempty"`
	// Message says what is being done or waited for.
	Message string `json:"message,omitempty"`
	// Percent is from 0 to 100. It means nothing while TotalBytes is 0.
	Percent int `json:"percent"`
	// ProcessedBytes of TotalBytes are done. TotalBytes is 0 while it is not known.
	ProcessedBytes int64 `json:"processedBytes"`
	TotalBytes     int64 `json:"totalBytes"`
	// BytesPerSecond is how fast ProcessedBytes grows now, and RemainingSeconds how long the rest takes at that rate. A
	// renderer measures both; 0 means not known.
	BytesPerSecond   int64 `json:"bytesPerSecond,omitempty"`
	RemainingSeconds int64 `json:"remainingSeconds,omitempty"`
	// Stored is what a backup of disks does besides reading; nil for everything else.
	*Stored
}

// Stored is what a backup of disks has done so far, in bytes.
type Stored struct {
	// ScannedBytes of DiskBytes, the size of the disks, are settled: read, known to be zero, or known to be as in the
	// parent.
	ScannedBytes int64 `json:"scannedBytes"`
	DiskBytes    int64 `json:"diskBytes"`
	// ChangedBytes are in blocks that differ from the parent's. The repository already had DeduplicatedBytes of them.
	ChangedBytes      int64 `json:"changedBytes"`
	DeduplicatedBytes int64 `json:"deduplicatedBytes"`
	// UploadedBytes went to the storage: compressed, and including the tables of blocks.
	UploadedBytes int64 `json:"uploadedBytes"`
}

// String returns what was stored, on one line.
func (s *Stored) String() string {
	return fmt.Sprintf("%s changed, %s deduplicated, %s uploaded, %s of %s scanned",
		human.Bytes(s.ChangedBytes), human.Bytes(s.DeduplicatedBytes), human.Bytes(s.UploadedBytes), human.Bytes(s.ScannedBytes), human.Bytes(s.DiskBytes))
}

// String returns the report as Plain shows it.
func (r Report) String() string {
	text := strings.Join(slices.DeleteFunc([]string{r.formatStep(" "), r.formatAmount()}, func(s string) bool { return s == "" }), " ")
	if r.Stored != nil {
		text += "; " + r.Stored.String()
	}
	return human.Line(r.Name) + ": " + text
}

// formatStep returns the phase and the message. A message that begins with the phase stands alone.
func (r Report) formatStep(between string) string {
	phase, message := human.Line(r.Phase), human.Line(r.Message)
	switch {
	case message == "":
		return phase
	case phase == "" || message == phase || strings.HasPrefix(message, phase+" "):
		return message
	}
	return phase + between + message
}

// formatAmount returns how much is done, how fast, and how long the rest takes; "" while the total is not known.
func (r Report) formatAmount() string {
	if r.TotalBytes == 0 {
		return ""
	}
	text := fmt.Sprintf("%d%% %s of %s", r.Percent, human.Bytes(r.ProcessedBytes), human.Bytes(r.TotalBytes))
	if r.BytesPerSecond > 0 {
		text += ", " + human.Bytes(r.BytesPerSecond) + "/s"
	}
	if r.RemainingSeconds > 0 {
		text += ", " + human.Span(time.Duration(r.RemainingSeconds)*time.Second) + " left"
	}
	return text
}

// isSame reports whether two reports say the same.
func (r Report) isSame(o Report) bool {
	if (r.Stored == nil) != (o.Stored == nil) || r.Stored != nil && *r.Stored != *o.Stored {
		return false
	}
	r.Stored, o.Stored = nil, nil
	return r == o
}

// Percent returns how much of total bytes is processed, from 0 to 100.
func Percent(processed, total int64) int {
	if total <= 0 || processed <= 0 {
		return 0
	}
	return int(min(float64(processed)/float64(total)*100, 100))
}
