package report

import (
	"os"
	"strings"
)

// ReadLoad returns the machine's load averages of 1, 5 and 15 minutes.
func ReadLoad() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "", err
	}
	return strings.Join(strings.Fields(string(text))[:3], " "), nil
}
