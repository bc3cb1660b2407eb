// Package source is the program of a source pod: it makes the first copy of an image on the pod's block device.
//
// It downloads the image, finds out its format from its content alone, decompresses and converts it, and writes the raw
// image from the device's first byte on. Package handover says how it tells the store how far it is.
//
// The server is not trusted. What is written is bounded by handover.MaxImageBytes, memory does not depend on what the
// server sends, and QEMU opens no file that an image names. A connection that breaks is continued where it broke if the
// server can send a part of a file and the file is still the same one. Otherwise the download starts again on an empty
// device. Secrets in addresses are in no error and in no log.
//
// An upload is a download whose server is the user's command, on connections that the command has made (package
// upload). While none is there, the source waits, and says so in its record. It fails if no byte comes for an hour.
package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repositoryaccess"
	"github.com/varvebackup/varve/internal/store/handover"
)

const (
	// maxFailures is how often in a row the source fails without progress before it gives up.
	maxFailures = 5
	// firstPause is the pause after the first failure. Each one is twice as long as the one before.
	firstPause = time.Second
	// maxTerminationBytes is the length of a message that Kubernetes keeps.
	maxTerminationBytes = 2048
)

// Options are what a source needs.
type Options struct {
	// Device is the path of the block device, or of a file, of handover.DeviceBytes.
	Device string
	// Config is what handover.SourceVariable holds.
	Config string
	// Scratch is a directory for the socket of a conversion.
	Scratch string
	// TerminationLog is the file that gets the error in one line, or the handover.Result of an upload; empty: none.
	TerminationLog string
	Log            *slog.Logger
	// Transport replaces the transport of HTTP in tests; nil: the usual one.
	Transport http.RoundTripper
	// Listener replaces that of an upload in tests; nil: the usual one.
	Listener net.Listener
	Clock    clock.WithTickerAndDelayedExecution
}

// Run makes the first copy. Errors have a class, and are in the termination log, too.
func Run(ctx context.Context, o Options) error {
	j := &job{options: o, secrets: &repositoryaccess.Secrets{}}
	err := j.run(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("the source was stopped: %w", context.Cause(ctx))
	}
	text := strings.Join(strings.Fields(j.secrets.Redact(err.Error())), " ")
	result := errors.New(text)
	if class := errclass.Of(err); class != errclass.None {
		result = errclass.Errorf(class, "%s", text)
	}
	return errors.Join(result, j.writeTerminationLog(handover.DescribeFailure(err, text)))
}

func (j *job) writeTerminationLog(line string) error {
	if j.options.TerminationLog == "" {
		return nil
	}
	if len(line) > maxTerminationBytes {
		line = strings.ToValidUTF8(line[:maxTerminationBytes], "")
	}
	if err := os.WriteFile(j.options.TerminationLog, []byte(line+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the termination log: %w", err)
	}
	return nil
}

// job is one run of a source.
type job struct {
	options  Options
	source   handover.Source
	secrets  *repositoryaccess.Secrets
	remote   *remote
	device   *device
	progress progress
	// file identifies the uploaded file of the attempt that has succeeded.
	file string
}

func (j *job) run(ctx context.Context) (err error) {
	if j.source, err = handover.ParseSource(j.options.Config); err != nil {
		return err
	}
	if j.device, err = openDevice(j.options.Device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.device.Close()) }()
	record, err := handover.Read(j.device)
	if err == nil && record.Complete {
		j.options.Log.Info("the image is already on the device", "bytes", record.Bytes)
		return j.tellFile(record)
	}
	// A record that cannot be read is one that was interrupted: what is on the device is removed below.
	if err != nil && !errors.Is(err, errclass.Corrupt) {
		return err
	}
	if err := j.openRemote(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.remote.close()) }()
	var bytes int64
	err = j.reportWhile(ctx, func(ctx context.Context) (err error) {
		bytes, err = j.writeImage(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return j.complete(bytes)
}

// openRemote finds out how to reach the file. Nothing is sent yet.
func (j *job) openRemote(ctx context.Context) (err error) {
	if j.source.Type == handover.TypeUpload {
		j.remote, err = newUploadRemote(ctx, &j.options, j.source.Image)
	} else {
		j.remote, err = newRemote(&j.options, &j.source, j.secrets)
	}
	return err
}

// complete records that the image is on the device, after it is durable.
func (j *job) complete(bytes int64) error {
	if err := j.device.sync(); err != nil {
		return err
	}
	record := j.progress.record()
	record.Bytes, record.Complete, record.File = bytes, true, j.file
	if err := handover.Write(j.device, record); err != nil {
		return describeFull(err)
	}
	if err := j.device.sync(); err != nil {
		return err
	}
	j.options.Log.Info("the image is on the device", "bytes", bytes)
	return j.tellFile(record)
}

// tellFile reports from which uploaded file the image was made, so that the command that has the file knows.
func (j *job) tellFile(r handover.Record) error {
	if r.File == "" {
		return nil
	}
	return j.writeTerminationLog(handover.Result{File: r.File}.String())
}

// writeImage writes the image to the empty device, and returns its size in bytes. It starts again if a download cannot
// be continued.
func (j *job) writeImage(ctx context.Context) (int64, error) {
	furthest, failures := int64(0), 0
	for {
		if err := j.device.wipe(ctx); err != nil {
			return 0, err
		}
		j.progress.reset()
		bytes, err := j.attempt(ctx)
		var broken *restartError
		if err == nil || !errors.As(err, &broken) {
			return bytes, err
		}
		failures++
		if broken.offset > furthest || j.remote.uploads != nil { // Another file is what the user wants.
			furthest, failures = broken.offset, 1
		}
		if failures > maxFailures {
			return 0, fmt.Errorf("after %d attempts that got no further than byte %d: %w", failures, furthest, err)
		}
		j.options.Log.Warn("the download starts again from the first byte", "at", broken.offset,
			"error", j.secrets.Redact(err.Error()))
		if err := pauseAfter(ctx, j.options.Clock, failures); err != nil {
			return 0, err
		}
	}
}

// pauseBeforeRetry waits before the next attempt at a byte, or returns an error if there is no other: an upload gives up
// when no byte has come for long, a download after maxFailures in a row.
func (j *job) pauseBeforeRetry(ctx context.Context, failures int, at int64, err error) error {
	if j.remote.uploads != nil {
		failures = 1
		if err := j.remote.uploads.CheckPatience(); err != nil {
			return err
		}
	} else if failures > maxFailures {
		return fmt.Errorf("after %d attempts at byte %d: %w", failures, at, err)
	}
	j.options.Log.Warn("the transfer will be continued", "at", at, "error", j.secrets.Redact(err.Error()))
	return pauseAfter(ctx, j.options.Clock, failures)
}

// pauseAfter waits after the given number of failures in a row.
func pauseAfter(ctx context.Context, c clock.Clock, failures int) error {
	timer := c.NewTimer(firstPause << (failures - 1))
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
