package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	longhornv1 "github.com/varvebackup/varve/api/longhorn/v1beta2"
	"github.com/varvebackup/varve/internal/cli/cluster"
	"github.com/varvebackup/varve/internal/cli/cmdline"
	"github.com/varvebackup/varve/internal/cli/failure"
	"github.com/varvebackup/varve/internal/cli/human"
	"github.com/varvebackup/varve/internal/cli/output"
	"github.com/varvebackup/varve/internal/cli/progress"
	"github.com/varvebackup/varve/internal/cli/resource"
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/store/names"
	"github.com/varvebackup/varve/internal/store/upload"
)

const (
	// uploadTimeout is the default of --timeout, enough for hundreds of GiB on a slow line.
	uploadTimeout = 24 * time.Hour
	// showEvery is how often to show how much was sent.
	showEvery = time.Second
	// silentTime is how long nothing may move before the connections are made anew: the way to the pod may have broken
	// unnoticed.
	silentTime = time.Minute
)

func newUploadCommand(s *resource.Session) *cobra.Command {
	var wanted wishes
	var w resource.Waiting
	c := &cobra.Command{
		Use: "upload NAME FILE", Short: "Create an image from a file of yours",
		Long: `Create an image from a file on this computer, and wait until it is ready.

The file is raw or qcow2, and may be compressed with gzip, xz or zstd. It is sent through the API
server, to a pod that writes it to a disk of a node. --checksum is the SHA-256 or the SHA-512 of
the raw image, after decompression and conversion. An image that has another one is not used.

A connection that breaks is made anew. If the command ends before the image is there, the pod waits
for an hour: the same command goes on where it stopped, if the file is still the same one on the
same computer. Another file begins anew, and the command says so. Nothing may write to the file
while it is uploaded.

It takes the cluster role varve-image-upload in namespace varve.`,
		Example: `  varve image upload golden ./golden.qcow2 --copies 2`,
		Args:    cmdline.ExactArgs(2, "a name for the image, and a file"),
		ValidArgsFunction: func(c *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // files
			}
			return s.CompleteArgs(newList, 1)(c, args, typed)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := wanted.newImage(args[0], longhornv1.SourceUpload)
			if err != nil {
				return err
			}
			file, err := upload.OpenFile(args[1])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // It was only read.
			c, err := s.Connect()
			if err != nil {
				return err
			}
			b.Namespace = c.Namespace
			created, err := findOrCreate(cmd.Context(), c, b, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			if created {
				if err := output.PrintDone(cmd.OutOrStdout(), b, "created"); err != nil {
					return err
				}
			}
			u := newUploader(s, c, b, file, args[1], clock.RealClock{})
			defer u.close()
			err = w.RunEach(cmd.Context(), s, "image "+b.Name+" is ready on "+countDisks(wantedCopies(b)),
				"image describe "+b.Name, u.uploadUntilReady)
			if err != nil {
				return err
			}
			return output.PrintDone(cmd.OutOrStdout(), b, "uploaded")
		},
	}
	wanted.addFlags(c)
	w.AddFlagsAlways(c, uploadTimeout)
	return c
}

// findOrCreate creates an image, or reads the one of this name into b if it waits for an upload. It reports whether it
// created it. given says which flags the user gave.
func findOrCreate(
	ctx context.Context, c *cluster.Client, b *longhornv1.BackingImage, given func(flag string) bool,
) (created bool, err error) {
	found, err := getImage(ctx, c, b.Name)
	if err != nil && cluster.Classify(err) == cluster.NotFound {
		if err := c.Create(ctx, b); err != nil {
			return false, fmt.Errorf("create image %s/%s: %w", b.Namespace, b.Name, explainRights(err))
		}
		return true, nil
	}
	if err == nil {
		err = checkWaiting(found, b, given)
	}
	if err != nil {
		return false, explainRights(err)
	}
	found.DeepCopyInto(b)
	return false, nil
}

// checkWaiting returns an error unless the image that was found waits for an upload and is as the flags want it.
func checkWaiting(found, wanted *longhornv1.BackingImage, given func(flag string) bool) error {
	conflict := func(hint, format string, args ...any) error {
		err := errclass.Errorf(errclass.Conflict, "image "+found.Name+" "+format, args...)
		return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: hint}
	}
	const another = "choose another name, or delete the image"
	s, have := &found.Status, &found.Spec
	switch {
	case found.DeletionTimestamp != nil:
		return conflict("wait until it is gone, or choose another name", "is being deleted")
	case have.SourceType != longhornv1.SourceUpload:
		return conflict(another, "exists already, and comes from %s", formatSource(found))
	case s.ReadyCopies > 0 || s.V2FirstCopyStatus == longhornv1.StateReady:
		return conflict(another, "is there already: it was uploaded before")
	case s.FirstCopyWrittenTime != nil:
		return conflict(another, "was uploaded already, and is being sealed")
	case given("checksum") && have.Checksum != wanted.Spec.Checksum:
		return conflict(another, "waits for an upload with another checksum than --checksum")
	case given("copies") && wantedCopies(found) != wanted.Spec.MinNumberOfCopies:
		return conflict("leave out --copies, or delete the image", "waits for an upload, and is to have %d copies",
			wantedCopies(found))
	case given("disk-tags") && !slices.Equal(have.DiskSelector, wanted.Spec.DiskSelector):
		return conflict("leave out --disk-tags, or delete the image", "waits for an upload to disks with the tags %q",
			strings.Join(have.DiskSelector, ","))
	case given("node-tags") && !slices.Equal(have.NodeSelector, wanted.Spec.NodeSelector):
		return conflict("leave out --node-tags, or delete the image", "waits for an upload to nodes with the tags %q",
			strings.Join(have.NodeSelector, ","))
	}
	return nil
}

// explainRights names the rights that an upload takes.
func explainRights(err error) error {
	return failure.ExplainForbidden(err,
		"ask for the cluster role varve-image-upload in the namespace of the images: see docs/images.md")
}

// uploader serves a file to the source pod of an image, and waits until the image is ready.
type uploader struct {
	session *resource.Session
	client  *cluster.Client
	image   *longhornv1.BackingImage
	file    *upload.File
	title   string // of the file
	clock   clock.WithTicker

	mu      sync.Mutex
	pod     string // the source pod while it takes the file, or ""
	written bool   // the source pod has taken all of the file
	forward *cluster.Forwarder
	problem string // why the last connection failed; "" if it did not, or before the first
	// attempts counts the failed first copies before the pod asked for the file.
	attempts int32
	// moved is how many bytes had moved at movedAt, when the last of them did.
	moved   int64
	movedAt time.Time
}

func newUploader(
	s *resource.Session, c *cluster.Client, b *longhornv1.BackingImage, file *upload.File, path string,
	clock clock.WithTicker,
) *uploader {
	return &uploader{
		session: s, client: c, image: b, file: file, title: filepath.Base(path), clock: clock,
		attempts: b.Status.FirstCopyAttempts,
	}
}

func (u *uploader) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.forward != nil {
		u.forward.Close()
	}
}

// errReady ends everything when the image is ready.
var errReady = errors.New("the image is ready")

// uploadUntilReady serves the file until the image is ready. It is a resource.WaitFunc.
func (u *uploader) uploadUntilReady(ctx context.Context, show func(progress.Report)) error {
	group, within := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := u.waitUntilReady(within, show); err != nil {
			return err
		}
		return errReady
	})
	group.Go(func() error {
		command := &upload.Command{File: u.file, Dial: u.dial, Clock: u.clock, Notify: u.recordProblem}
		return explainRights(command.Run(within))
	})
	group.Go(func() error {
		u.watchTransfer(within, show)
		return nil
	})
	err := group.Wait()
	switch {
	case errors.Is(err, errReady):
		return nil
	case errors.Is(err, upload.ErrBusy):
		return &failure.Error{Err: fmt.Errorf("image %s: %w", u.image.Name, err), Code: errclass.ExitRefused}
	}
	sent, all := human.Bytes(u.file.Position()), human.Bytes(u.file.Bytes)
	what := fmt.Sprintf("%s of %s of %s have been sent", sent, all, u.title)
	return failure.Interrupted(ctx, err, what, "the same command goes on there, if it is run within an hour; "+
		u.session.CommandHint("image delete "+u.image.Name)+" ends it")
}

// waitUntilReady waits until the image is ready.
func (u *uploader) waitUntilReady(ctx context.Context, show func(progress.Report)) error {
	f := newFollower(u.session, u.client, u.image)
	return f.follow(ctx, show, func(b *longhornv1.BackingImage, _ []diskCopy) (bool, error) {
		u.setPod(b)
		asked := u.file.HowItBegan().Asked
		if n := b.Status.FirstCopyAttempts; n > u.attempts {
			if asked {
				return false, &failure.Error{
					Err: fmt.Errorf("image %s: the upload failed: %s", b.Name, firstMessage(b)), Code: errclass.ExitFailure,
					Hint: "the image still waits for an upload: run the command again, or " +
						u.session.CommandHint("image delete "+b.Name),
				}
			}
			u.attempts = n
		}
		if b.Status.ReadyCopies > 0 {
			if err := u.checkFile(b); err != nil {
				return false, err
			}
		}
		return int(b.Status.ReadyCopies) >= wantedCopies(b), f.checkFailure(show, b)
	})
}

// checkFile returns an error unless a ready image was made from this file, by whichever command.
func (u *uploader) checkFile(b *longhornv1.BackingImage) error {
	switch b.Status.FirstCopyFile {
	case u.file.Identity():
		return nil
	case "":
		return &failure.Error{
			Err:  fmt.Errorf("image %s is ready, but the cluster does not say whether it was made from %s", b.Name, u.title),
			Code: errclass.ExitFailure,
			Hint: "compare status.checksum of the image with what `sha512sum` says of the raw image, or delete the image",
		}
	}
	err := errclass.Errorf(errclass.Conflict,
		"image %s was made from another file than %s: another command has uploaded it", b.Name, u.title)
	return &failure.Error{Err: err, Code: errclass.ExitRefused, Hint: "choose another name, or delete the image"}
}

// setPod records which pod takes the file, if one may be there.
func (u *uploader) setPod(b *longhornv1.BackingImage) {
	s := &b.Status
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pod, u.written = "", s.FirstCopyWrittenTime != nil || s.ReadyCopies > 0
	if s.V2FirstCopyStatus == longhornv1.StateInProgress && s.FirstCopyWrittenTime == nil && s.UUID != "" {
		u.pod = names.SourceHandle(s.UUID)
	}
}

// errNoPod is the error of dial before the pod starts and after it ends. The condition of the image says why.
var errNoPod = errclass.New(errclass.Transient, "the pod that makes the image is not there")

// dial connects to the source pod. Its errors are Transient, unless the user is denied: that does not pass by itself.
func (u *uploader) dial(ctx context.Context) (net.Conn, error) {
	u.mu.Lock()
	pod := u.pod
	if u.forward == nil && pod != "" {
		u.forward = u.client.Forward(u.client.Namespace, pod, upload.Port)
	}
	forward := u.forward
	u.mu.Unlock()
	if pod == "" {
		return nil, errNoPod
	}
	conn, err := forward.Dial(ctx)
	if class := errclass.Of(err); err == nil || class == errclass.Denied || class == errclass.Transient {
		return conn, err
	}
	return nil, errclass.Errorf(errclass.Transient, "%w", err)
}

// recordProblem keeps why a connection failed, or that it did not. While the pod is not there, the image says why.
func (u *uploader) recordProblem(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.problem = ""
	if err != nil && !errors.Is(err, errNoPod) {
		u.problem = err.Error()
	}
}

// watchTransfer shows how much was sent, and drops the connections when nothing moves, so that new ones are made.
func (u *uploader) watchTransfer(ctx context.Context, show func(progress.Report)) {
	everyTick(ctx, u.clock, func() {
		u.showSent(show)
		if f := u.findSilence(); f != nil {
			f.Drop()
		}
	})
}

// everyTick calls do once in showEvery until ctx ends.
func everyTick(ctx context.Context, c clock.WithTicker, do func()) {
	ticker := c.NewTicker(showEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			do()
		}
	}
}

// showSent shows how much was sent, or why nothing can be.
func (u *uploader) showSent(show func(progress.Report)) {
	begin := u.file.HowItBegan()
	u.mu.Lock()
	pod, written, problem := u.pod, u.written, u.problem
	u.mu.Unlock()
	// The image has reports of its own, and may have the name of the file.
	r := progress.Report{Name: "file " + u.title, Phase: "Upload", Message: problem}
	switch {
	case begin.Asked && written:
		r.Phase = "Uploaded"
		show(r)
		return
	case pod == "", !begin.Asked && problem == "": // The image says what it waits for.
		return
	case problem == "" && begin.Replaces:
		r.Message = "from the first byte, because another file was uploaded before"
	case problem == "" && begin.Continues && begin.At > 0:
		r.Message = "goes on at " + human.Bytes(begin.At)
	case problem == "" && begin.Continues:
		r.Message = "goes on where it broke"
	}
	if begin.Asked {
		r.ProcessedBytes, r.TotalBytes = u.file.Position(), u.file.Bytes
		r.Percent = progress.Percent(r.ProcessedBytes, r.TotalBytes)
	}
	show(r)
}

// findSilence returns the forwarder if nothing has moved on it for long although the pod is there.
func (u *uploader) findSilence() *cluster.Forwarder {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.clock.Now()
	if u.forward == nil || u.pod == "" {
		u.movedAt = now
		return nil
	}
	if moved := u.forward.Moved(); moved != u.moved || u.movedAt.IsZero() {
		u.moved, u.movedAt = moved, now
	}
	if now.Sub(u.movedAt) < silentTime {
		return nil
	}
	u.movedAt = now
	return u.forward
}
