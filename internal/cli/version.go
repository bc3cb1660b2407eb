package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (s *session) version() *cobra.Command {
	var form string
	c := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Long:  "Show the version of this program, the Go that built it, and its platform. No cluster is asked.",
		Example: `  varve version

  # For a script
  varve version -o json`,
		Args: exactArgs(0, "no argument"),
		RunE: func(c *cobra.Command, _ []string) error {
			v := versionInfo{Version: s.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if form != "" {
				return printData(c.OutOrStdout(), form, v)
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "varve %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			return err
		},
	}
	outputFlag(c, &form, asJSON, asYAML)
	return c
}
