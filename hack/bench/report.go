package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// row is one figure. Ratio is above 1 when Varve is better than the peer.
type row struct {
	ID        string  `json:"id"`
	What      string  `json:"what"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Peer      string  `json:"peer"`
	PeerValue float64 `json:"peerValue"`
	Ratio     float64 `json:"ratio"`
	// Min and Max are the spread of Value.
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// sample is what repeated rounds measured.
type sample []float64

func (s sample) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// smaller makes a row of a figure that is better when it is smaller; larger the other way.
func smaller(id, what, unit string, s sample, peer string, p sample) row {
	r := larger(id, what, unit, s, peer, p)
	if r.Ratio != 0 {
		r.Ratio = 1 / r.Ratio
	}
	return r
}

func larger(id, what, unit string, s sample, peer string, p sample) row {
	r := row{ID: id, What: what, Unit: unit, Value: s.median(), Peer: peer, PeerValue: p.median(), Min: slices.Min(s), Max: slices.Max(s)}
	if r.PeerValue != 0 {
		r.Ratio = r.Value / r.PeerValue
	}
	return r
}

func table(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tMEDIAN\tMIN\tMAX\tUNIT\tPEER\tPEER MEDIAN\tRATIO\tWHAT")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%.3g\t%.3g\t%.3g\t%s\t%s\t%.3g\t%.2f\t%s\n", r.ID, r.Value, r.Min, r.Max, r.Unit, r.Peer, r.PeerValue, r.Ratio, r.What)
	}
	w.Flush()
}

func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// machine says what the figures were measured on.
func machine(rounds int, dataMiB int64, hypervisor []string) map[string]any {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo")
	model := ""
	for line := range strings.Lines(string(cpuinfo)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
		}
	}
	return map[string]any{
		"cores": runtime.NumCPU(), "cpu": model, "kernel": strings.TrimSpace(string(kernel)), "go": runtime.Version(),
		"rounds": rounds, "dataMiB": dataMiB, "usedMiB": fullMiB, "hypervisor": hypervisor, "emulation": "tcg",
	}
}
