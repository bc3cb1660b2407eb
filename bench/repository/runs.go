package main

import (
	"github.com/varvebackup/varve/bench/report"
)

// usages is what the rounds of one command used.
type usages []usage

// sampleOf returns one figure of each round.
func (u usages) sampleOf(figure func(usage) float64) report.Sample {
	var s report.Sample
	for _, x := range u {
		s = append(s, figure(x))
	}
	return s
}

func wallSeconds(u usage) float64 { return u.wall.Seconds() }
func memoryMiB(u usage) float64   { return float64(u.memory) / float64(mib) }
func storedMiB(u usage) float64   { return float64(u.stored) / float64(mib) }

func (u usages) medianCost() *report.Cost {
	return &report.Cost{
		CPUSeconds: u.sampleOf(func(u usage) float64 { return u.cpu.Seconds() }).Median(),
		MemoryMiB:  u.sampleOf(memoryMiB).Median(),
		StoredMiB:  u.sampleOf(storedMiB).Median(),
	}
}

// rowVersusPeer returns a row for a figure that is better if it is smaller, with the costs of both.
func rowVersusPeer(id, what, unit string, figure func(usage) float64, ours usages, peer string, theirs usages) report.Row {
	r := report.Smaller(id, what, unit, ours.sampleOf(figure), peer, theirs.sampleOf(figure))
	r.Cost, r.PeerCost = ours.medianCost(), theirs.medianCost()
	return r
}

// rowVersusAim returns a row for a figure that is compared with its target value.
func rowVersusAim(id, what, unit string, figure func(usage) float64, ours usages, value float64) report.Row {
	r := report.Smaller(id, what, unit, ours.sampleOf(figure), "aim", report.Sample{value})
	r.Cost = ours.medianCost()
	return r
}

// inRounds calls each function once per round, and starts with a different one each time: what one leaves behind in
// the file system or the storage must not always slow down the same one.
func inRounds(rounds int, each ...func(round int) error) error {
	for round := range rounds {
		for i := range each {
			if err := each[(i+round)%len(each)](round); err != nil {
				return err
			}
		}
	}
	return nil
}
