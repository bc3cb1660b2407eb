package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/varvebackup/varve/box/internal/layout"
)

// ErrUnhealthy says that the box, or a part of it, is not running.
var ErrUnhealthy = errors.New("the box is not healthy: `box up` repairs it")

// Status writes what is running to w. It returns ErrUnhealthy if something should be running and is not, and
// fs.ErrNotExist if there is no box.
func Status(ctx context.Context, dir layout.Box, w io.Writer) error {
	st, err := loadState(dir)
	if err != nil {
		return err
	}
	healthy := true
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells ...any) error {
		_, err := fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", cells...)
		return err
	}
	if err := line("NODE", "SERVICE", "STATE", "SINCE", "RESTARTS"); err != nil {
		return err
	}
	for i, n := range st.Nodes {
		l := dir.Node(i + 1)
		if !n.Init.Alive() {
			healthy = false
			if err := line(l.Name, "", "dead", "", ""); err != nil {
				return err
			}
			continue
		}
		all, err := serviceStatus(l)
		if err != nil {
			return err
		}
		names := make([]string, 0, len(all))
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			s := all[name]
			state := "running"
			if s.PID == 0 {
				state, healthy = "down ("+s.LastExit+")", false
			}
			if err := line(l.Name, name, state, time.Since(s.Started).Round(time.Second).String(), fmt.Sprint(s.Restarts)); err != nil {
				return err
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	api := "ready"
	if err := checkReady(ctx, dir); err != nil {
		api, healthy = err.Error(), false
	}
	_, err = fmt.Fprintf(w, "\nAPI server: %s\nnetwork:    %s on %s\nlogs:       %s/NODE/log/SERVICE.log\nkubeconfig: %s\n",
		api, st.Plan.Base, st.Bridge, dir, dir.Kubeconfig())
	if err == nil && !healthy {
		err = ErrUnhealthy
	}
	return err
}

func checkReady(ctx context.Context, dir layout.Box) error {
	c, err := adminClient(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = c.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}
