package image

import (
	"crypto/x509"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/resource"
)

const (
	// copyTimeout is the default of --timeout, enough for a download of many GiB.
	copyTimeout = time.Hour
	mostCopies  = 100
	// mostCertificateBytes is how long a parameter of an image may be.
	mostCertificateBytes = 16384
)

// request is what the flags of `image create` say.
type request struct {
	wishes

	// exactly one of them
	url, fromImage, fromClaim, fromVolume, fromBackup, fromImageBackup, fromSnapshot string
	// volume needs fromBackup, location fromSnapshot, and caFile url.
	volume, location, caFile string
}

// wishes are the flags of every image, wherever it comes from.
type wishes struct {
	checksum           string
	copies             int
	diskTags, nodeTags []string
}

// addFlags adds the flags to a command.
func (w *wishes) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&w.checksum, "checksum", "",
		"the SHA-256 or the SHA-512 that the raw image must have, in hexadecimal")
	c.Flags().IntVar(&w.copies, "copies", 1, "on how many disks the image is at least")
	c.Flags().StringSliceVar(&w.diskTags, "disk-tags", nil, "tags that each disk must have, such as ssd,fast")
	c.Flags().StringSliceVar(&w.nodeTags, "node-tags", nil, "tags that the node of each disk must have")
}

// checksums are the SHA-256 and the SHA-512 in hexadecimal.
var checksums = regexp.MustCompile(`^([0-9a-f]{64}|[0-9a-f]{128})$`)

// newObject returns the image to create, or a usage error.
func (r *request) newObject(name string) (*longhornv1.BackingImage, error) {
	from, parameters, err := r.describeSource(name)
	if err != nil {
		return nil, err
	}
	b, err := r.newImage(name, from)
	if err != nil {
		return nil, err
	}
	b.Spec.SourceParameters = parameters
	if r.caFile != "" {
		certificates, err := readCertificates(r.caFile)
		if err != nil {
			return nil, err
		}
		parameters[longhornv1.ParameterCACertificate] = certificates
	}
	return b, nil
}

// newImage returns the image to create, without what its source needs, or a usage error.
func (w *wishes) newImage(name string, from longhornv1.SourceType) (*longhornv1.BackingImage, error) {
	if w.copies < 1 || w.copies > mostCopies {
		return nil, failure.Usage("--copies %d: it must be from 1 to %d", w.copies, mostCopies)
	}
	checksum := strings.ToLower(strings.TrimSpace(w.checksum))
	for _, prefix := range []string{"sha256:", "sha512:"} {
		checksum = strings.TrimPrefix(checksum, prefix)
	}
	if checksum != "" && !checksums.MatchString(checksum) {
		return nil, failure.Usage("--checksum %s: give the SHA-256 or the SHA-512 of the raw image in hexadecimal: "+
			"64 or 128 digits", w.checksum)
	}
	return &longhornv1.BackingImage{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: longhornv1.BackingImageSpec{
			DataEngine: longhornv1.DataEngineV2, SourceType: from, Checksum: checksum,
			MinNumberOfCopies: w.copies, DiskSelector: w.diskTags, NodeSelector: w.nodeTags,
		},
	}, nil
}

// readCertificates reads a file with certificates in PEM format.
func readCertificates(path string) (longhornv1.ParameterValue, error) {
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return "", failure.Usage("--ca-file: %s", err)
	case !x509.NewCertPool().AppendCertsFromPEM(text):
		return "", failure.Usage("--ca-file %s: the file has no certificate in PEM format", path)
	case len(text) > mostCertificateBytes:
		return "", failure.Usage("--ca-file %s: the file has more than %d bytes: keep the certificate of the server's "+
			"authority alone", path, mostCertificateBytes)
	}
	return longhornv1.ParameterValue(text), nil
}

func newCreateCommand(s *resource.Session) *cobra.Command {
	var r request
	var w resource.Waiting
	c := &cobra.Command{
		Use: "create NAME", Short: "Create an image from an address, a volume, a backup or another image",
		Long: `Create an image: Varve makes it on a disk of a node, and copies it from there to others.

The file at --url is raw or qcow2, and may be compressed with gzip, xz or zstd. --checksum is the
SHA-256 or the SHA-512 of the raw image, after decompression and conversion. An image that has
another one is not used. With --ca-file, the certificates in it alone are trusted. Whoever may read
images reads the address, with any password in it. To make an image of a file that you have, use
'varve image upload'.

--from-claim and --from-volume make an image of what a volume of the driver store.varvebackup.io
has, where it is and without copying it. Nothing may use the volume meanwhile: the image waits
until it is detached. --from-image makes a clone of another image, which may be deleted afterwards.

--from-backup makes an image of a disk as the backup of a machine has it, and --from-snapshot-id of
the disk that a data upload has stored. The machine, its volume and its storage need not be there.
--from-image-backup brings an image back that 'varve image backup' has stored; it must have the
checksum of that image, unless --checksum is another one.`,
		Example: `  # On two disks, and wait until both have it
  varve image create debian --url https://example.com/debian.qcow2 --copies 2 --wait

  # Only if it is the one that was tested
  varve image create golden --url https://example.com/golden.raw.zst \
    --checksum 7d793037a0760186574b0282f2f435e7a2c5b0e0d9d3cf7e8d1b5a1e1b1f1d5b

  # Of the disk of a machine as it was on Monday
  varve image create golden --from-backup app/web-monday --volume root --wait

  # Of the disk of a machine that is shut down
  varve image create golden --from-claim app/web-root --wait`,
		Args: cmdline.ExactArgs(1, "a name for the image"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := r.newObject(args[0])
			if err != nil {
				return err
			}
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b.Namespace = c.Namespace
			if err := r.findVolume(cmd.Context(), c, b); err != nil {
				return err
			}
			if err := r.findPoint(cmd.Context(), c, b); err != nil {
				return err
			}
			if err := c.Create(cmd.Context(), b); err != nil {
				return explainSourceRights(fmt.Errorf("create image %s/%s: %w", b.Namespace, b.Name, err))
			}
			if err := output.PrintDone(cmd.OutOrStdout(), b, "created"); err != nil || !w.Wait {
				return err
			}
			return w.RunEach(cmd.Context(), s, "image "+b.Name+" is ready on "+countDisks(r.copies),
				"image describe "+b.Name, untilReady(s, c, b, r.copies))
		},
	}
	c.Flags().StringVar(&r.url, "url", "", "the address of the image, with http:// or https://")
	c.Flags().StringVar(&r.fromImage, "from-image", "", "the image to clone")
	c.Flags().StringVar(&r.fromClaim, "from-claim", "", "the claim of the volume to make the image of, as NAMESPACE/NAME")
	c.Flags().StringVar(&r.fromVolume, "from-volume", "",
		"the volume to make the image of: the name of its Volume, which is the handle of its PersistentVolume")
	c.Flags().StringVar(&r.fromBackup, "from-backup", "",
		"the machine backup that has the disk to make the image of, as NAMESPACE/NAME")
	c.Flags().StringVar(&r.fromImageBackup, "from-image-backup", "", "the backup of an image to bring back")
	c.Flags().StringVar(&r.volume, "volume", "",
		"with --from-backup: the volume of the machine (default: its only one)")
	c.Flags().StringVar(&r.fromSnapshot, "from-snapshot-id", "",
		"the snapshot ID of the disk to make the image of, from a data upload")
	c.Flags().StringVar(&r.location, "location", "",
		"with --from-snapshot-id: the backup storage location, in the image's namespace")
	r.addFlags(c)
	c.Flags().StringVar(&r.caFile, "ca-file", "",
		"a file with the certificates (PEM) of the server's authority (default: those of the image of Varve)")
	w.AddFlags(c, "that many copies are ready", copyTimeout)
	return c
}

// explainSourceRights names the rights that it takes to make images of anything.
func explainSourceRights(err error) error {
	return failure.ExplainForbidden(err, "ask for the verbs create and use-source on backingimages.longhorn.io in the "+
		"namespace of the images, as varve-admin has them: see docs/images.md")
}
