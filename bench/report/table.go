package report

import (
	"fmt"
	"io"
	"slices"
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
