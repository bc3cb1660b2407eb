// Package resource has what the commands of machines, backups and trackers share: the connection to the cluster, the list
// and the deletion of API objects, waiting, completion and events.
package resource

import (
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/session"
)

// Session is what the commands that talk to a cluster share.
type Session struct {
	*session.Session

	flags *genericclioptions.ConfigFlags
	// home is the namespace of commands whose user selects none; empty: the kubeconfig's.
	home string
}

// NewSession returns a session with kubectl's flags.
func NewSession(s *session.Session) *Session {
	return &Session{Session: s, flags: genericclioptions.NewConfigFlags(true)}
}

// NewSessionIn is NewSession for objects that are all in one namespace, so that their users select none.
func NewSessionIn(s *session.Session, namespace string) *Session {
	in := NewSession(s)
	in.home = namespace
	return in
}

// everyday are the flags with which most users select the cluster. `varve options` shows the others.
var everyday = map[string]bool{"kubeconfig": true, "context": true, "namespace": true}

// clusterFlags adds kubectl's flags that select cluster, user and namespace. It hides all but the everyday ones.
func clusterFlags(flags *genericclioptions.ConfigFlags, to *pflag.FlagSet) {
	flags.AddFlags(to)
	to.VisitAll(func(f *pflag.Flag) { f.Hidden = !everyday[f.Name] })
}

// CommandHint returns a command line for a hint, with the flags by which the user selected the cluster and the namespace.
func (s *Session) CommandHint(line string) string {
	line = "varve " + line
	for _, f := range []struct {
		name  string
		value *string
	}{{"-n", s.flags.Namespace}, {"--context", s.flags.Context}, {"--kubeconfig", s.flags.KubeConfig}} {
		if f.value != nil && *f.value != "" {
			line += " " + f.name + " " + shellWord(*f.value)
		}
	}
	return "`" + line + "`"
}

// shellWord returns text as one word of a shell.
func shellWord(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("-_./:@=+,%", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return text
}

// Connect connects to the cluster that the user selected. It sends nothing yet.
func (s *Session) Connect() (*cluster.Client, error) {
	c, err := cluster.Connect(s.flags, s.Streams.Err)
	if err == nil && s.home != "" && (s.flags.Namespace == nil || *s.flags.Namespace == "") {
		c.Namespace = s.home
	}
	return c, err
}

// GroupCommand makes a command that only holds others, all of which talk to a cluster.
func (s *Session) GroupCommand(use, short, long, example string, aliases []string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Aliases: aliases}
	c.AddCommand(children...)
	s.AddClusterFlags(c)
	return c
}

// AddClusterFlags adds the flags that select cluster, user and namespace to a command and those below it.
func (s *Session) AddClusterFlags(c *cobra.Command) {
	clusterFlags(s.flags, c.PersistentFlags())
	s.CompleteFlag(c, "namespace", newNamespaces)
}
