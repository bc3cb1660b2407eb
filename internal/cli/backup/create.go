package backup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/varvebackup/varve/api/backup/v1alpha1"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
)

// tokenSuffix is how many random characters the name of a Secret with a token ends with.
const tokenSuffix = 5

// backupRequest is what the flags of `backup create` say.
type backupRequest struct {
	vm, tracker, pvc       string
	forceFull, skipQuiesce bool
	labels                 map[string]string
	pull                   bool
	ttl                    time.Duration
	tokenSecret            string
}

func newCreateCommand(s *resource.Session) *cobra.Command {
	var r backupRequest
	var w resource.Waiting
	var form string
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Back up a virtual machine",
		Long: `Back up a virtual machine to a claim in its namespace.

--tracker makes an incremental backup of what changed since the tracker's last backup. The first
backup is full. A disk whose changes were not tracked all the time is also backed up in full, and
the backup says why. --vm makes a full backup that no later one depends on.

Without a NAME, the name begins with that of the tracker or machine.

The backup runs in the cluster, whether this command waits or not. With --wait, the command
succeeds only if the backup does.

With --pull, the backup offers its disks until it is deleted, or until --ttl is over. The
claim then only holds what the guest overwrites meanwhile. Clients show the token in
--token-secret; without it, the command makes a Secret with a random token, which goes with
the backup. With --wait, the command waits until the disks can be fetched: varve backup pull
does that.`,
		Example: `  # An incremental backup, with its progress
  varve backup create --tracker web --pvc backups --wait

  # A full one that stands alone
  varve backup create before-upgrade --vm web --pvc backups --wait --timeout 1h

  # Full, although the tracker has a base; progress for a program
  varve backup create --tracker web --pvc backups --force-full --wait --progress json

  # One that clients fetch
  varve backup create monday --tracker web --pvc scratch --pull --ttl 4h --wait
  varve backup pull monday --output /srv/backups/web/monday --finish`,
		Args: cmdline.AtMostOne("at most a name"), ValidArgsFunction: cobra.NoFileCompletions,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return r.validateFlags(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b := r.newObject(c.Namespace, args)
			if err := createWithToken(cmd.Context(), c, b, r.pull && r.tokenSecret == ""); err != nil {
				return err
			}
			if form == "" {
				if err := output.PrintDone(cmd.OutOrStdout(), b, "created"); err != nil {
					return err
				}
			}
			if w.Wait {
				goal, wait := "is done", untilFinal(s, c, b)
				if r.pull {
					goal, wait = "is ready", untilReady(s, c, b)
				}
				if err := w.Run(cmd.Context(), s, "backup "+b.Name+" "+goal, "backup describe "+b.Name, wait); err != nil {
					return err
				}
			}
			return r.printResult(cmd.OutOrStdout(), s, form, b, w.Wait)
		},
	}
	r.addFlags(s, c)
	output.AddFlag(c, &form, output.AsJSON, output.AsYAML, output.AsName)
	w.AddFlags(c, "the backup is done, or with --pull ready, or has failed", 0)
	return c
}

func (r *backupRequest) addFlags(s *resource.Session, c *cobra.Command) {
	c.Flags().StringVar(&r.vm, "vm", "", "the virtual machine to back up in full")
	c.Flags().StringVar(&r.tracker, "tracker", "", "the tracker whose last backup is the base")
	c.Flags().StringVar(&r.pvc, "pvc", "", "the claim (volume mode Filesystem) to write to, or with --pull for what the guest overwrites; the backup waits until it exists")
	c.Flags().BoolVar(&r.forceFull, "force-full", false, "with --tracker: copy everything, as a new base")
	c.Flags().BoolVar(&r.skipQuiesce, "skip-quiesce", false, "do not freeze the guest's file systems: the backup is crash consistent")
	c.Flags().BoolVar(&r.pull, "pull", false, "offer the disks to clients instead of writing them to the claim")
	c.Flags().DurationVar(&r.ttl, "ttl", 0, "with --pull: how long the backup lasts, such as 4h (default 2h); then it fails")
	c.Flags().StringVar(&r.tokenSecret, "token-secret", "", "with --pull: the Secret whose key token has the clients' token (default: a new one)")
	c.Flags().StringToStringVar(&r.labels, "labels", nil, "labels of the backup object, such as schedule=nightly,tier=1")
	s.CompleteFlag(c, "vm", resource.NewVMs)
	s.CompleteFlag(c, "tracker", resource.NewTrackers)
	s.CompleteFlag(c, "pvc", resource.NewClaims)
}

func (r *backupRequest) validateFlags(c *cobra.Command) error {
	switch {
	case (r.vm == "") == (r.tracker == ""):
		return failure.Usage("give exactly one of --tracker (incremental) and --vm (a full backup that stands alone)")
	case r.pvc == "":
		return failure.Usage("--pvc is required: the claim to write to")
	case r.forceFull && r.tracker == "":
		return failure.Usage("--force-full needs --tracker: without one every backup is full")
	case !r.pull && (c.Flags().Changed("ttl") || r.tokenSecret != ""):
		return failure.Usage("--ttl and --token-secret need --pull")
	case c.Flags().Changed("ttl") && r.ttl <= 0:
		return failure.Usage("--ttl %s: it must be positive", r.ttl)
	}
	return nil
}

// newObject returns the backup to create. Without a name, the server generates one.
func (r *backupRequest) newObject(namespace string, args []string) *backupv1.VirtualMachineBackup {
	b := &backupv1.VirtualMachineBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: r.labels},
		Spec: backupv1.VirtualMachineBackupSpec{
			BackupTracker: r.tracker, Mode: backupv1.PushMode, PVCName: r.pvc, SkipQuiesce: r.skipQuiesce, ForceFullBackup: r.forceFull,
		},
	}
	if r.vm != "" {
		b.Spec.Source = resource.VirtualMachineReference(r.vm)
	}
	if len(args) == 1 {
		b.Name = args[0]
	} else {
		b.GenerateName = r.vm + r.tracker + "-" // one of the two is empty
	}
	if r.pull {
		r.setPull(b)
	}
	return b
}

// setPull makes b a backup in pull mode.
func (r *backupRequest) setPull(b *backupv1.VirtualMachineBackup) {
	b.Spec.Mode = backupv1.PullMode
	if r.ttl > 0 {
		b.Spec.TTL = &metav1.Duration{Duration: r.ttl}
	}
	secret := r.tokenSecret
	if secret == "" {
		// The backup names its Secret before the server could generate a name from it.
		secret = cmp.Or(b.Name, strings.TrimSuffix(b.GenerateName, "-")) + "-token-" + utilrand.String(tokenSuffix)
	}
	b.Spec.TokenSecretRef = &secret
}

// printResult prints the result of a create that succeeded.
func (r *backupRequest) printResult(w io.Writer, s *resource.Session, form string, b *backupv1.VirtualMachineBackup, waited bool) error {
	if form != "" {
		return output.PrintObject(w, form, b)
	}
	if !waited {
		return nil
	}
	if r.pull {
		return printReady(w, s, b)
	}
	_, err := fmt.Fprintln(w, formatSummary(b))
	return err
}

// printReady describes a backup that can be fetched, and says how.
func printReady(w io.Writer, s *resource.Session, b *backupv1.VirtualMachineBackup) error {
	var size int64
	for _, v := range b.Status.IncludedVolumes {
		size += v.VirtualBytes
	}
	text := fmt.Sprintf("backup %s ready: %s, %s of %s, until %s", b.Name, b.Status.BackupType, human.Count(len(b.Status.IncludedVolumes), "disk"), human.Bytes(size), output.FormatTime(endOf(b)))
	if b.Status.FrozenMillis != nil {
		text += ", frozen " + human.Took(time.Duration(*b.Status.FrozenMillis)*time.Millisecond)
	}
	_, err := fmt.Fprintf(w, "%s\nFetch it with %s.\n", human.Line(text), s.CommandHint("backup pull "+b.Name+" --output DIRECTORY --finish"))
	return err
}

// endOf returns when a backup in pull mode fails, if nobody deletes it before.
func endOf(b *backupv1.VirtualMachineBackup) time.Time {
	return b.CreationTimestamp.Add(b.Spec.Lifetime())
}

// formatSummary describes a finished backup in one line.
func formatSummary(b *backupv1.VirtualMachineBackup) string {
	text := fmt.Sprintf("backup %s done: %s, %s moved", b.Name, b.Status.BackupType, human.Bytes(b.Status.MovedBytes))
	if b.Status.StartTimestamp != nil && b.Status.CompletionTimestamp != nil {
		text += ", took " + human.Span(b.Status.CompletionTimestamp.Sub(b.Status.StartTimestamp.Time))
	}
	if b.Status.FrozenMillis != nil {
		text += ", frozen " + human.Took(time.Duration(*b.Status.FrozenMillis)*time.Millisecond)
	}
	return human.Line(text + ", in " + b.Spec.PVCName + ":" + b.Status.Directory)
}

// untilFinal waits until the backup has ended, and stores its last state in b.
func untilFinal(s *resource.Session, c *cluster.Client, b *backupv1.VirtualMachineBackup) resource.WaitFunc {
	uid, name := b.UID, b.Name
	return func(ctx context.Context, show func(progress.Report)) error {
		return cluster.Follow(ctx, c, client.ObjectKeyFromObject(b), &backupv1.VirtualMachineBackup{}, resource.NewBackups(),
			func(seen *backupv1.VirtualMachineBackup, exists bool) (bool, error) {
				if !exists || seen.UID != uid {
					return false, failure.New("", "backup %s was deleted while it ran: %s", name, backupv1.ReasonAborted)
				}
				show(newReport(seen))
				seen.DeepCopyInto(b)
				switch seen.Status.Phase {
				case backupv1.BackupDone:
					return true, nil
				case backupv1.BackupFailed:
					return false, failure.New(s.CommandHint("backup describe "+name)+" shows its disks and events", "backup %s failed: %s: %s", name, seen.Status.Reason, seen.Status.Message)
				default:
					return false, nil
				}
			})
	}
}

func newReport(b *backupv1.VirtualMachineBackup) progress.Report {
	r := progress.Report{Name: b.Name, Phase: phaseOf(b), Message: b.Status.Message}
	if p := b.Status.Progress; p != nil {
		r.ProcessedBytes, r.TotalBytes = p.ProcessedBytes, p.TotalBytes
		r.Percent = progress.Percent(p.ProcessedBytes, p.TotalBytes)
	}
	return r
}
