// Package report has the figures of the benchmarks: rows that compare Varve with a peer, and the files that they go to.
// Nothing in it may be used from several goroutines at once.
package report

import "slices"

// Row is one figure. Ratio is above 1 when Varve is better than the peer.
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
	// Cost and PeerCost are what the figure's runs used, where that was measured.
	Cost     *Cost `json:"cost,omitempty"`
	PeerCost *Cost `json:"peerCost,omitempty"`
}

// Cost is what a run used beside time, as medians over the rounds; 0 where it was not measured.
type Cost struct {
	// CPUSeconds of the program and of all that it started.
	CPUSeconds float64 `json:"cpuSeconds,omitempty"`
	// MemoryMiB is the largest resident set of the program, or of one that it started.
	MemoryMiB float64 `json:"memoryMiB,omitempty"`
	// StoredMiB is by how much the repository's directory grew.
	StoredMiB float64 `json:"storedMiB,omitempty"`
}

// Sample is what repeated rounds measured.
type Sample []float64

// Median is 0 of nothing.
func (s Sample) Median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Smaller makes a row of a figure that is better when it is smaller. s is not empty.
func Smaller(id, what, unit string, s Sample, peer string, p Sample) Row {
	r := Larger(id, what, unit, s, peer, p)
	if r.Ratio != 0 {
		r.Ratio = 1 / r.Ratio
	}
	return r
}

// Larger makes a row of a figure that is better when it is larger. s is not empty.
func Larger(id, what, unit string, s Sample, peer string, p Sample) Row {
	r := Row{ID: id, What: what, Unit: unit, Value: s.Median(), Peer: peer, PeerValue: p.Median(), Min: slices.Min(s), Max: slices.Max(s)}
	if r.PeerValue != 0 {
		r.Ratio = r.Value / r.PeerValue
	}
	return r
}
