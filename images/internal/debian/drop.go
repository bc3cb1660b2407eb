package debian

import (
	"path"
	"strings"
)

// DocsVersion changes whenever Docs drops something else.
const DocsVersion = "1"

// emptied are directories that stay but lose their content: state of the machine that made the root, caches, and
// mount points of a running system.
var emptied = []string{"dev", "proc", "sys", "run", "tmp", "var/tmp", "var/cache", "var/log", "var/lib/apt/lists"}

// undesired are trees that nobody reads in a container or a test guest.
var undesired = []string{
	"usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bug", "usr/share/groff",
	"usr/share/bash-completion", "usr/share/zsh", "usr/share/doc-base", "usr/share/linda",
	// The identity of one machine, or leftovers of the installation.
	"etc/machine-id", "var/lib/dbus/machine-id", "etc/hostname", "etc/resolv.conf",
	"var/lib/dpkg/status-old", "var/lib/dpkg/available-old", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-",
	"var/lib/systemd/catalog/database", "etc/apt/sources.list", "var/lib/systemd/random-seed",
}

// Docs drops documentation, translations, caches and files that identify the machine that made the root. Licences
// (usr/share/doc/*/copyright) stay.
func Docs(name string) bool {
	for _, dir := range emptied {
		if strings.HasPrefix(name, dir+"/") {
			// libvirt expects its own directories below these.
			return !strings.HasPrefix(name, "var/cache/libvirt") && !strings.HasPrefix(name, "var/log/libvirt")
		}
	}
	for _, tree := range undesired {
		if name == tree {
			return true
		}
	}
	rest, ok := strings.CutPrefix(name, "usr/share/doc/")
	return ok && strings.Contains(rest, "/") && path.Base(rest) != "copyright"
}
