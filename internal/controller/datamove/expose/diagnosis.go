package expose

import "strings"

// withDetail adds what is known of the reason to what is waited for.
func withDetail(what, detail string) string {
	if detail = strings.TrimSpace(detail); detail == "" {
		return what
	}
	return what + " (" + detail + ")"
}
