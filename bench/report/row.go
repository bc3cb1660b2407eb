// Package report contains the figures of the benchmarks: rows that compare Varve with a peer, and the files that they
// are written to. It is not safe for use by several goroutines at once.
package report

import "slices"

// Row is one figure. Ratio is above 1 if Varve is better than the peer.
type Row struct {
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
	// Cost and PeerCost are what the figure's runs used, if that was measured.
	Cost     *Cost `json:"cost,omitempty"`
	PeerCost *Cost `json:"peerCost,omitempty"`
	// Processors and PeerProcessors are the processor seconds of each process for a GiB, as medians over the rounds, if
	// that was measured.
	Processors     map[string]float64 `json:"cpuSecondsPerGiB,omitempty"`
	PeerProcessors map[string]float64 `json:"peerCPUSecondsPerGiB,omitempty"`
}

// Cost is what a run used apart from time, as medians over the rounds. 0 means not measured.
type Cost struct {
	// CPUSeconds of the program and of everything that it started.
	CPUSeconds float64 `json:"cpuSeconds,omitempty"`
	// MemoryMiB is the largest resident set of the program, or of one that it started.
	MemoryMiB float64 `json:"memoryMiB,omitempty"`
	// StoredMiB is how much the repository's directory grew.
	StoredMiB float64 `json:"storedMiB,omitempty"`
}

// Sample is the measurements of repeated rounds.
type Sample []float64

// Median returns the median, or 0 for an empty sample.
func (s Sample) Median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Smaller returns a row for a figure that is better if it is smaller. s must not be empty.
func Smaller(id, what, unit string, s Sample, peer string, p Sample) Row {
	r := Larger(id, what, unit, s, peer, p)
	if r.Ratio != 0 {
		r.Ratio = 1 / r.Ratio
	}
	return r
}

// Larger returns a row for a figure that is better if it is larger. s must not be empty.
func Larger(id, what, unit string, s Sample, peer string, p Sample) Row {
	r := Row{ID: id, What: what, Unit: unit, Value: s.Median(), Peer: peer, PeerValue: p.Median(), Min: slices.Min(s), Max: slices.Max(s)}
	if r.PeerValue != 0 {
		r.Ratio = r.Value / r.PeerValue
	}
	return r
}
