package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/varvebackup/varve/box/internal/hostnet"
	"github.com/varvebackup/varve/box/internal/layout"
	"github.com/varvebackup/varve/box/internal/netplan"
	"github.com/varvebackup/varve/box/internal/service"
	"github.com/varvebackup/varve/box/internal/xfs"
)

// Config describes the box to bring up.
type Config struct {
	Dir      layout.Box
	Nodes    int          // at least this many; a box never loses a node while it is up
	Bridge   string       // the bridge's name on the host; used only when the box is created
	Subnet   netip.Prefix // a /16; if invalid, Up chooses a free one; used only when the box is created
	Programs Programs
}

// errEtcdDamaged says that etcd exits soon after each start.
var errEtcdDamaged = errors.New("etcd cannot read its data")

// Up makes the box run and healthy, whatever existed before: nothing, a running box, or the remains of one.
func Up(ctx context.Context, cfg Config, p *Progress) error {
	if cfg.Nodes < 1 || cfg.Nodes > netplan.MaxNodes {
		return fmt.Errorf("a box has 1 to %d nodes, not %d", netplan.MaxNodes, cfg.Nodes)
	}
	if err := checkMachine(); err != nil {
		return err
	}
	unlock, err := lockBox(ctx, cfg.Dir, true)
	if err != nil {
		return err
	}
	defer unlock()
	err = bringUp(ctx, cfg, p)
	if !errors.Is(err, errEtcdDamaged) && !errors.Is(err, errStateDamaged) && !errors.Is(err, xfs.ErrDamaged) {
		return err
	}
	p.Say("%v", err)
	p.Say("starting a FRESH cluster: what was in the old one is lost, except the images that were loaded")
	if err := wipeBox(ctx, cfg.Dir); err != nil {
		return err
	}
	return bringUp(ctx, cfg, p)
}

func bringUp(ctx context.Context, cfg Config, p *Progress) error {
	st, err := openState(cfg, p)
	if err != nil {
		return err
	}
	changed, err := cfg.Programs.installInto(cfg.Dir)
	if err != nil {
		return err
	}
	if err := hostnet.EnsureBridge(st.Bridge, string(cfg.Dir), st.Plan); err != nil {
		return err
	}
	if err := service.Credentials(cfg.Dir, st.Plan, len(st.Nodes), time.Now()); err != nil {
		return err
	}
	if err := ensureVolumes(ctx, cfg.Dir, len(st.Nodes)); err != nil {
		return err
	}
	// A node may die at any time, even now: a process that was just killed can still look alive.
	err = st.convergeNodes(ctx, cfg.Dir, changed, p)
	for again := 0; errors.Is(err, errNodeDied) && again < 2; again++ {
		err = st.convergeNodes(ctx, cfg.Dir, false, p)
	}
	if err != nil {
		return err
	}
	p.Say("the box is up: %d node(s), export KUBECONFIG=%s", len(st.Nodes), cfg.Dir.Kubeconfig())
	return nil
}

// convergeNodes starts the nodes that are not running, and waits for all to work.
func (s *State) convergeNodes(ctx context.Context, dir layout.Box, changed bool, p *Progress) error {
	for i := 1; i <= len(s.Nodes); i++ {
		if err := service.Configure(s.nodeSpec(dir, i)); err != nil {
			return err
		}
		if err := s.ensureNode(ctx, dir, i, changed, p); err != nil {
			return err
		}
	}
	return s.waitHealthy(ctx, dir, p)
}

// openState loads the box's state or creates a new one, with room for the wanted nodes.
func openState(cfg Config, p *Progress) (*State, error) {
	st, err := loadState(cfg.Dir)
	if isMissing(err) {
		st, err = createState(cfg, p)
	}
	if err != nil {
		return nil, err
	}
	if len(st.Nodes) > cfg.Nodes {
		p.Say("the box has %d nodes already: it keeps them", len(st.Nodes))
	}
	for len(st.Nodes) < cfg.Nodes {
		st.Nodes = append(st.Nodes, NodeState{})
	}
	return st, st.saveState(cfg.Dir)
}

func createState(cfg Config, p *Progress) (*State, error) {
	if err := onlyRemains(cfg.Dir); err != nil {
		return nil, err
	}
	plan, err := netplan.New(cfg.Subnet)
	if !cfg.Subnet.IsValid() {
		taken, terr := hostnet.Taken()
		if terr != nil {
			return nil, terr
		}
		plan, err = netplan.Choose(taken)
	}
	if err != nil {
		return nil, err
	}
	p.Say("a new box in %s: bridge %s, network %s", cfg.Dir, cfg.Bridge, plan.Base)
	return &State{Bridge: cfg.Bridge, Plan: plan}, nil
}

// ensureNode starts node i unless it is running with the current programs.
func (s *State) ensureNode(ctx context.Context, dir layout.Box, i int, changed bool, p *Progress) error {
	name := layout.NodeName(i)
	old := s.Nodes[i-1].Init
	switch {
	case old.Alive() && !changed:
		return nil
	case old.Alive():
		p.Say("%s runs other programs: restarting it", name)
	case old.PID != 0:
		p.Say("%s is dead: cleaning up after it and starting it again", name)
	default:
		p.Say("starting %s", name)
	}
	if err := s.stopNode(ctx, dir, i); err != nil {
		return err
	}
	return s.startNode(ctx, dir, i)
}
