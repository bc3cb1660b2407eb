package cli

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
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
			var text []byte
			var err error
			switch form {
			case asJSON:
				text, err = json.MarshalIndent(v, "", "    ")
				text = append(text, '\n')
			case asYAML:
				text, err = yaml.Marshal(v)
			default:
				text = fmt.Appendf(nil, "varve %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			}
			if err != nil {
				return fmt.Errorf("encode version: %w", err)
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	outputFlag(c, &form, asJSON, asYAML)
	return c
}
