package repo

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/retention"
)

// lockFlags are the flags of an object lock.
type lockFlags struct{ mode, period string }

func (f *lockFlags) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.mode, "object-lock", "", "keep the storage from deleting what was written: GOVERNANCE (users with a special permission can) or COMPLIANCE (nobody can)")
	c.Flags().StringVar(&f.period, "object-lock-period", "", "with --object-lock: for how long, such as 30d; maintenance extends the lock of what is in use")
	cmdline.CompleteFixed(c, "object-lock", "GOVERNANCE", "COMPLIANCE")
}

func (f *lockFlags) newCreateOptions(at repository.Location) (repository.CreateOptions, error) {
	var o repository.CreateOptions
	if f.mode == "" && f.period == "" {
		return o, nil
	}
	o.LockMode = strings.ToUpper(f.mode)
	period, err := parseDays(f.period)
	switch {
	case f.mode == "" || f.period == "":
		return o, failure.Usage("--object-lock and --object-lock-period need each other")
	case o.LockMode != "GOVERNANCE" && o.LockMode != "COMPLIANCE":
		return o, failure.Usage("--object-lock %s: use GOVERNANCE or COMPLIANCE", f.mode)
	case err != nil:
		return o, failure.Usage("--object-lock-period: %s", err)
	case period < 24*time.Hour:
		return o, failure.Usage("--object-lock-period %s: give at least 1d", f.period)
	case at.S3 == nil:
		return o, failure.Usage("--object-lock needs a bucket with object lock: a directory cannot refuse to delete")
	}
	o.LockPeriod = period
	return o, nil
}

// parseDays reads a span of weeks, days and hours, which have a fixed length.
func parseDays(text string) (time.Duration, error) {
	span, err := retention.ParseSpan(text)
	if err != nil {
		return 0, err
	}
	if span.Years != 0 || span.Months != 0 {
		return 0, errors.New("years and months have no fixed length: use weeks, days or hours, such as 30d")
	}
	hours := span.Hours + 24*(span.Days+7*span.Weeks)
	if hours > 24*365*100 {
		return 0, fmt.Errorf("%s is more than a century", text)
	}
	return time.Duration(hours) * time.Hour, nil
}
