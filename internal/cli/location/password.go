package location

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/repoaccess"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/layout"
)

func newPasswordCommand(s *resource.Session) *cobra.Command {
	c := &cobra.Command{
		Use: "password", Short: "Take the passwords of a location's repositories out of the cluster, and bring them into another one",
		Long: `Take the passwords of a location's repositories out of the cluster, and bring them into
another one. Without its password, nobody can read a repository.`,
		Example: `  varve location password export default -n velero
  varve location password import default -n velero --password-file default.password --context other`,
	}
	c.AddCommand(newPasswordExportCommand(s), newPasswordImportCommand(s))
	return c
}

// volumesOf adds --volumes-of.
func volumesOf(c *cobra.Command, namespace *string) {
	c.Flags().StringVar(namespace, "volumes-of", "", "the namespace whose repository has a password of its own (default: the password that all namespaces share)")
}

func newPasswordExportCommand(s *resource.Session) *cobra.Command {
	var namespace string
	c := &cobra.Command{
		Use: "export NAME", Short: "Write the password of a location's repositories to standard output",
		Long: `Write the password of a location's repositories to standard output. Keep it outside the
cluster: whoever has it and the keys of the storage can read the backups, and without it nobody
can.`,
		Example: `  varve location password export default -n velero --volumes-of app`,
		Args:    cmdline.ExactArgs(1, "the name of a location"), ValidArgsFunction: s.CompleteArgs(newLocationList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			l, err := get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			_, password, err := repoaccess.FindPassword(cmd.Context(), c, client.ObjectKeyFromObject(l), namespace)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), password)
			return err
		},
	}
	volumesOf(c, &namespace)
	return c
}

func newPasswordImportCommand(s *resource.Session) *cobra.Command {
	var namespace string
	repo := repoaccess.NewSession(s.Session)
	c := &cobra.Command{
		Use: "import NAME", Short: "Bring the password of a location's repositories into the cluster",
		Long: `Bring the password of a location's repositories into the cluster, before the first restore from
a location that another cluster writes to. A password that is there already is never replaced.`,
		Example: `  varve location password import default -n velero --password-file default.password`,
		Args:    cmdline.ExactArgs(1, "the name of a location"), ValidArgsFunction: s.CompleteArgs(newLocationList, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.Connect()
			if err != nil {
				return err
			}
			l, err := get(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			password, err := repo.ReadPassword(cmd.Context(), false)
			if err != nil {
				return err
			}
			name := datamove.LocationPasswordSecret(client.ObjectKeyFromObject(l))
			if namespace != "" {
				name = datamove.NamespacePasswordSecret(namespace, client.ObjectKeyFromObject(l))
			}
			done, err := importPassword(cmd.Context(), c, name, password)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Secret %s/%s %s\n", layout.Namespace, name, done)
			return err
		},
	}
	volumesOf(c, &namespace)
	repo.AddPasswordFlag(c.Flags())
	return c
}

// importPassword makes the Secret of a password, and says what was done.
func importPassword(ctx context.Context, c *cluster.Client, name, password string) (string, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: layout.Namespace, Name: name}, Data: map[string][]byte{datamove.PasswordKey: []byte(password)},
	}
	err := c.Create(ctx, secret)
	if err == nil {
		return "created", nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create Secret %s/%s: %w", layout.Namespace, name, err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
		return "", fmt.Errorf("get Secret %s/%s: %w", layout.Namespace, name, err)
	}
	if string(secret.Data[datamove.PasswordKey]) == password {
		return "unchanged", nil
	}
	return "", &failure.Error{
		Err:  fmt.Errorf("there is another password in Secret %s/%s", layout.Namespace, name),
		Code: errclass.ExitRefused,
		Hint: "repositories may have been made with it: `varve location describe` shows them; only if there are none, delete the Secret first",
	}
}
