// Command varve-launcher is process 1 of a launcher pod: it runs libvirtd and one guest, and serves launcher.proto on a
// unix socket. It consists of two processes of one program: the init that reaps (package pid1), and its child, the
// launcher itself.
//
// Called by the name virt-freezer it freezes or thaws the guest of its pod, and ends.
//
// It exits 0 after the guest has shut down, and 1 after a crash or a failed start. The termination message says which.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/varvebackup/varve/internal/domain/libvirtd"
	"github.com/varvebackup/varve/internal/launcher/pid1"
	"github.com/varvebackup/varve/internal/layout"
)

// options are the flags.
type options struct {
	socket         string
	libvirtd       string
	libvirtdConfig string
	libvirtURI     string
	emulatorPIDs   string
	serialLog      string
	terminationLog string
	logLevel       slog.Level
	worker         bool
}

func parseOptions(args []string, output io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("varve-launcher", flag.ContinueOnError)
	f.SetOutput(output)
	f.StringVar(&o.socket, "socket", layout.Socket, "unix socket to serve on")
	f.StringVar(&o.libvirtd, "libvirtd", "/usr/sbin/libvirtd", "libvirtd's program")
	f.StringVar(&o.libvirtdConfig, "libvirtd-config", "/etc/libvirt/libvirtd.conf", "libvirtd's configuration")
	f.StringVar(&o.libvirtURI, "libvirt-uri", layout.LibvirtURI, "where libvirtd answers")
	f.StringVar(&o.emulatorPIDs, "emulator-pids", libvirtd.EmulatorPIDs, "directory where libvirt keeps the process IDs of emulators")
	f.StringVar(&o.serialLog, "serial-log", "", "file that gets the guest's serial console; it grows without limit (default: none)")
	f.StringVar(&o.terminationLog, "termination-log", "/dev/termination-log", "file that gets one line of JSON about the end")
	f.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	f.BoolVar(&o.worker, "worker", false, "internal: run the launcher itself, below the init")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return o, nil
}

func main() {
	if filepath.Base(os.Args[0]) == freezerName {
		os.Exit(runFreezer(os.Args[1:], freezerSocket, os.Stderr))
	}
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "varve-launcher:", err)
		os.Exit(2)
	}
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.logLevel}))
	var code int
	if o.worker {
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		code = runWorker(ctx, o, log)
		cancel()
	} else {
		code = runInit(o, log)
	}
	os.Exit(code)
}

// runInit runs the launcher as a child, and writes its termination message if a signal has killed it.
func runInit(o options, log *slog.Logger) int {
	args := append([]string{os.Args[0], "--worker"}, os.Args[1:]...)
	status, err := pid1.Run("/proc/self/exe", args)
	if err != nil {
		log.Error("init failed", "error", err)
		return 1
	}
	if status.Signal != 0 {
		writeTermination(o, log, termination{End: "CRASHED", Message: fmt.Sprintf("the launcher was killed by signal %d (%s)", status.Signal, status.Signal)})
	}
	return status.Code
}
