package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
)

// result is what the demo found. Its JSON form is written to build/demo/result.json.
type result struct {
	Backups []backupResult `json:"backups"`
	Stored  []storedMoment `json:"stored"`
	OK      bool           `json:"ok"`
}

// storedMoment is what a repository has of one moment.
type storedMoment struct {
	Name    string         `json:"name"`
	Volumes []storedResult `json:"volumes"`
	Seconds float64        `json:"seconds"`
}

// storedResult is one disk of a moment. The sums are those of the moment that is restored.
type storedResult struct {
	Name         string `json:"name"`
	VirtualBytes int64  `json:"virtualBytes"`
	NewBytes     int64  `json:"newBytes"`
	FullReason   string `json:"fullReason,omitempty"`

	SHA256Expected string `json:"sha256Expected,omitempty"`
	SHA256Restored string `json:"sha256Restored,omitempty"`
	Identical      bool   `json:"identical"`
}

type backupResult struct {
	Name         string         `json:"name"`
	Type         string         `json:"type"`
	Volumes      []volumeResult `json:"volumes"`
	Seconds      float64        `json:"seconds"`
	FrozenMillis int64          `json:"frozenMillis"`
}

type volumeResult struct {
	Name           string `json:"name"`
	Type           string `json:"type"`
	VirtualBytes   int64  `json:"virtualBytes"`
	MovedBytes     int64  `json:"movedBytes"`
	SHA256Expected string `json:"sha256Expected"`
	SHA256Restored string `json:"sha256Restored"`
	Identical      bool   `json:"identical"`
}

// judgeAll sets OK if there are three points in time, each with both disks, and all are identical, and if the last moment in the repository
// came back so.
func (r *result) judgeAll() {
	r.OK = len(r.Backups) == 3
	for _, b := range r.Backups {
		r.OK = r.OK && len(b.Volumes) == 2
		for _, v := range b.Volumes {
			r.OK = r.OK && v.Identical
		}
	}
	r.OK = r.OK && len(r.Stored) == 2
	if !r.OK {
		return
	}
	last := r.Stored[len(r.Stored)-1]
	r.OK = len(last.Volumes) == 2
	for _, v := range last.Volumes {
		r.OK = r.OK && v.Identical
	}
}

func (r *result) writeJSON(file string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

func (r *result) printTable(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BACKUP\tTYPE\tVOLUME\tMOVED\tVIRTUAL\tSECONDS\tFROZEN MS\tVERDICT")
	for _, b := range r.Backups {
		for i, v := range b.Volumes {
			name, kind, seconds, frozen := "", "", "", ""
			if i == 0 {
				name, kind = b.Name, b.Type
				seconds, frozen = fmt.Sprintf("%.1f", b.Seconds), fmt.Sprint(b.FrozenMillis)
			}
			verdict := "identical"
			if !v.Identical {
				verdict = "DIFFERENT"
			}
			fmt.Fprintf(w, "%s\t%s\t%s (%s)\t%s\t%s\t%s\t%s\t%s\n", name, kind, v.Name, v.Type, formatMiB(v.MovedBytes), formatMiB(v.VirtualBytes), seconds, frozen, verdict)
		}
	}
	w.Flush()
	if len(r.Stored) == 0 {
		return
	}
	fmt.Fprintln(w, "\nIN THE REPOSITORY\tVOLUME\tNEW OR CHANGED\tVIRTUAL\tSECONDS\tAFTER THE MACHINE WAS DELETED")
	for _, u := range r.Stored {
		for i, v := range u.Volumes {
			name, seconds, verdict := "", "", ""
			if i == 0 {
				name, seconds = u.Name, fmt.Sprintf("%.1f", u.Seconds)
			}
			if v.SHA256Expected != "" {
				verdict = "identical, and boots"
				if !v.Identical {
					verdict = "DIFFERENT"
				}
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", name, v.Name, formatMiB(v.NewBytes), formatMiB(v.VirtualBytes), seconds, verdict)
		}
	}
	w.Flush()
}

func formatMiB(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
