package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/output"
)

type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionInfo(version string) versionInfo {
	return versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

func (v versionInfo) String() string {
	return fmt.Sprintf("varve %s (%s, %s)", v.Version, v.Go, v.Platform)
}

func versionCommand(version string) *cobra.Command {
	var form string
	c := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Long:  "Show the version of this program, the Go that built it, and its platform. No cluster is asked.",
		Example: `  varve version

  # For a script
  varve version -o json`,
		Args: cmdline.ExactArgs(0, "no argument"),
		RunE: func(c *cobra.Command, _ []string) error {
			v := newVersionInfo(version)
			if form != "" {
				return output.PrintData(c.OutOrStdout(), form, v)
			}
			_, err := fmt.Fprintln(c.OutOrStdout(), v)
			return err
		},
	}
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML)
	return c
}
