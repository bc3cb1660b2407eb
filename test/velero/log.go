package velero

import (
	"os"
	"regexp"

	"github.com/varvebackup/varve/test/process"
)

// tail returns the end of a server's log, without what each start brings.
func tail(log *os.File) string { return noise.ReplaceAllString(process.Tail(log), "") }

// noise is what each start of a server brings, and where in Velero's code a line is from.
var noise = regexp.MustCompile(`(?m)^.*level=info msg="(Starting (EventSource|Controller|workers)|registering plugin|plugin process exited|Found custom resource)".*\n| logSource="[^"]*"`)
