//go:build libvirt_dlopen

package domain

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/varvebackup/varve/internal/domain/domaintest"
)

func TestMain(m *testing.M) {
	code := domaintest.RunAsLauncher(m)
	// libvirt's event loop lives as long as the process.
	loop := goleak.IgnoreAnyFunction("github.com/varvebackup/varve/internal/domain.runEventLoop")
	if err := goleak.Find(loop); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
