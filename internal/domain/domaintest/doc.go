// Package domaintest runs a package's tests inside the launcher's root file system. There libvirtd, QEMU and qemu-img
// are the ones that the product ships, on a machine that has none of them.
//
// A package opts in with its TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(domaintest.Run(m)) }
//
// Run executes the test binary again, twice. The first one is process 1 of new mount, PID and IPC namespaces. It
// mounts a throw-away overlay over build/launcher-root and reaps orphans as the launcher does. Below it, the second
// one runs the tests themselves. Everything ends with the outermost process: mounts, processes, files.
//
// Inside, t.TempDir is on the machine's own file system (QEMU needs O_DIRECT). The working directory is the
// package's, in the repository, which is read-only. GuestDir has what `make guest` built. The tests need root. A root
// has one libvirt, so tests that call StartLibvirt must not run in parallel with each other.
package domaintest
