package main

import (
	"time"

	"github.com/varvebackup/varve/bench/report"
)

// series is the rounds of one row, and of its peer.
type series struct {
	ours, peer           report.Sample
	memory               report.Sample
	processors, peerUsed map[string]report.Sample
}

// figures are series by the IDs of their rows.
type figures map[string]*series

// add adds a round. used and peerUsed are nil if they were not measured.
func (f figures) add(id string, ours, peer float64, used, peerUsed *usage) {
	s := f[id]
	if s == nil {
		s = &series{processors: map[string]report.Sample{}, peerUsed: map[string]report.Sample{}}
		f[id] = s
	}
	s.ours, s.peer = append(s.ours, ours), append(s.peer, peer)
	if used != nil {
		s.memory = append(s.memory, float64(used.moverBytes)/float64(mib))
	}
	addProcessors(s.processors, used)
	addProcessors(s.peerUsed, peerUsed)
}

func addProcessors(all map[string]report.Sample, u *usage) {
	if u == nil {
		return
	}
	for name, used := range u.processors {
		all[name] = append(all[name], used.Seconds())
	}
}

// row returns a row whose figure is better if it is smaller. bytes is the size of the disk.
func (f figures) row(id, what, unit, peer string, bytes int64) report.Row {
	s := f[id]
	r := report.Smaller(id, what, unit, s.ours, peer, s.peer)
	if len(s.processors) > 0 {
		r.Cost = &report.Cost{CPUSeconds: sumOfMedians(s.processors), MemoryMiB: s.memory.Median()}
		r.Processors = medians(s.processors, bytes)
	}
	if len(s.peerUsed) > 0 {
		r.PeerCost = &report.Cost{CPUSeconds: sumOfMedians(s.peerUsed)}
		r.PeerProcessors = medians(s.peerUsed, bytes)
	}
	return r
}

func sumOfMedians(all map[string]report.Sample) float64 {
	var sum float64
	for _, s := range all {
		sum += s.Median()
	}
	return sum
}

// medians returns processor seconds for each GiB of a disk.
func medians(all map[string]report.Sample, bytes int64) map[string]float64 {
	out := map[string]float64{}
	for name, s := range all {
		out[name] = s.Median() * float64(gib) / float64(bytes)
	}
	return out
}

func secondsSince(began time.Time) float64 { return time.Since(began).Seconds() }
