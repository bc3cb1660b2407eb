package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table prints rows for people. It shows the costs of Varve and of the peer if any row has them.
func Table(out io.Writer, rows []Row) {
	costs := slices.ContainsFunc(rows, func(r Row) bool { return r.Cost != nil })
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprint(w, "ID\tMEDIAN\tMIN\tMAX\tUNIT\tPEER\tPEER MEDIAN\tRATIO\t")
	if costs {
		fmt.Fprint(w, "CPU S\tMEMORY MIB\tSTORED MIB\t")
	}
	fmt.Fprintln(w, "WHAT")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%.3g\t%.3g\t%.3g\t%s\t%s\t%.3g\t%.2f\t", r.ID, r.Value, r.Min, r.Max, r.Unit, r.Peer, r.PeerValue, r.Ratio)
		if costs {
			for _, figure := range []func(Cost) float64{
				func(c Cost) float64 { return c.CPUSeconds },
				func(c Cost) float64 { return c.MemoryMiB },
				func(c Cost) float64 { return c.StoredMiB },
			} {
				fmt.Fprintf(w, "%s / %s\t", formatCost(r.Cost, figure), formatCost(r.PeerCost, figure))
			}
		}
		fmt.Fprintln(w, r.What)
	}
	w.Flush()
	printProcessors(out, rows)
}

// printProcessors prints the processor seconds of each process for a GiB, if any row has them.
func printProcessors(out io.Writer, rows []Row) {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		if len(r.Processors) > 0 {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.ID, formatProcessors(r.Processors), r.Peer, formatProcessors(r.PeerProcessors))
		}
	}
	if slices.ContainsFunc(rows, func(r Row) bool { return len(r.Processors) > 0 }) {
		fmt.Fprintln(out, "\nCPU seconds for each GiB, by process")
	}
	w.Flush()
}

func formatProcessors(seconds map[string]float64) string {
	var all []string
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(seconds)) {
		all, sum = append(all, fmt.Sprintf("%s %.2f", name, seconds[name])), sum+seconds[name]
	}
	return fmt.Sprintf("%.2f (%s)", sum, strings.Join(all, ", "))
}

func formatCost(c *Cost, figure func(Cost) float64) string {
	switch {
	case c == nil || figure(*c) == 0:
		return "-"
	case figure(*c) < 100:
		return fmt.Sprintf("%.3g", figure(*c))
	}
	return fmt.Sprintf("%.0f", figure(*c))
}
