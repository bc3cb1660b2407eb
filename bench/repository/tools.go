package main

import (
	"os"
	"path/filepath"
)

// tool is a program that keeps backups in a repository.
type tool struct {
	name string
	// repository is the directory that it stores in. state is everything else that it keeps about a repository:
	// configuration and caches.
	repository string
	state      []string
	// create makes a repository.
	create [][]string
	// full backs up the image.
	full []string
	// slow says that this takes minutes, so that it runs only in every other round.
	slow bool
}

// The names of the tools. The second Varve uses the same compression as restic.
const (
	varve, varveZstd = "varve", "varve-zstd"
	kopia            = "kopia"
	restic           = "restic"
	borg             = "borg"
)

// password is the password of all repositories.
const password = "bench"

// toolEnvironment returns the whole environment of the programs. They keep their files in this run's directory, ask no
// questions and check for no updates.
func (b *bench) toolEnvironment() []string {
	in := func(name string) string { return filepath.Join(b.dir, name) }
	return []string{
		"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "HOME=" + in("home"), "TMPDIR=" + b.dir,
		"XDG_CACHE_HOME=" + in("home/.cache"), "XDG_CONFIG_HOME=" + in("home/.config"),
		"VARVE_PASSWORD=" + password, "VARVE_REPO_CONFIG=" + in("varve.config"),
		"KOPIA_PASSWORD=" + password, "KOPIA_CONFIG_PATH=" + in("kopia.config"),
		"KOPIA_LOG_DIR=" + in("kopia-logs"), "KOPIA_CHECK_FOR_UPDATES=false", "KOPIA_USE_KEYRING=false",
		"RESTIC_PASSWORD=" + password, "RESTIC_REPOSITORY=" + in("restic"), "RESTIC_CACHE_DIR=" + in("restic-cache"),
		"BORG_PASSPHRASE=" + password, "BORG_REPO=" + in("borg"), "BORG_BASE_DIR=" + in("borg-base"),
	}
}

// allTools returns all tools that back up the image, by name.
func (b *bench) allTools() map[string]*tool {
	in := func(name string) string { return filepath.Join(b.dir, name) }
	varveTool := func(name string, flags ...string) *tool {
		return &tool{
			name: name, repository: in("varve"), state: []string{in("varve.config")},
			create: [][]string{{b.varve, "repo", "create", in("varve")}},
			full:   append([]string{b.varve, "disk", "backup", machineName, "disk=" + b.image, "--progress", "none"}, flags...),
		}
	}
	return map[string]*tool{
		varve:     varveTool(varve),
		varveZstd: varveTool(varveZstd, "--compression", "zstd"),
		// Hash, encryption and compression are the same as Varve's; blocks are cut in kopia's way.
		kopia: {
			name: kopia, repository: in("kopia"), state: []string{in("kopia.config"), in("kopia.config.kopia-password"), in("kopia-logs")},
			create: [][]string{
				{
					b.kopia, "repository", "create", "filesystem", "--path", in("kopia"), "--block-hash", "BLAKE3-256-128", "--encryption", "AES256-GCM-HMAC-SHA256",
					"--content-cache-size-mb", "0", // no caches, as Varve has none for a directory: kopia restores faster without them
				},
				{b.kopia, "policy", "set", "--global", "--compression", "s2-default"},
			},
			full: b.kopiaSnapshot(),
		},
		restic: {
			name: restic, repository: in("restic"), state: []string{in("restic-cache")},
			create: [][]string{{"restic", "init", "--repository-version", "2"}},
			full:   []string{"restic", "backup", "--quiet", "--compression", "auto", b.image},
			slow:   true,
		},
		borg: {
			name: borg, repository: in("borg"), state: []string{in("borg-base")},
			create: [][]string{{"borg", "init", "--encryption", "repokey-blake2"}},
			full:   []string{"borg", "create", "--compression", "lz4", "::full", b.image},
			slow:   true,
		},
	}
}

// kopiaSnapshot backs up the image's directory with kopia. If the source is the file itself, kopia reads it even if
// its time is that of the last snapshot. Automatic maintenance is off: it would run whenever it is due, whereas
// Varve's runs on request.
func (b *bench) kopiaSnapshot() []string {
	return []string{b.kopia, "snapshot", "create", "--no-progress", "--no-auto-maintenance", "--json", filepath.Dir(b.image)}
}
