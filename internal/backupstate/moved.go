package backupstate

import (
	"fmt"
	"strconv"
)

// Moved writes a count of bytes with the unit of a Kubernetes quantity, rounded, with one decimal below 10: "91Mi",
// "1.2Gi". It is empty for nothing.
func Moved(bytes int64) string {
	const step = 1024
	if bytes <= 0 {
		return ""
	}
	if bytes < step {
		return strconv.FormatInt(bytes, 10)
	}
	value, unit := float64(bytes)/step, 0
	// What would be rounded to 1024 gets the next unit.
	for units := len("KMGTPE"); unit < units-1 && value >= step-0.5; unit++ {
		value /= step
	}
	name := "KMGTPE"[unit : unit+1]
	if tenths := int64(value*10 + 0.5); tenths < 100 && tenths%10 != 0 {
		return fmt.Sprintf("%d.%d%si", tenths/10, tenths%10, name)
	}
	return fmt.Sprintf("%d%si", int64(value+0.5), name)
}
