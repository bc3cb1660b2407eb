// Package domaintest runs a package's tests inside the launcher's root file system, where libvirtd, QEMU and
// qemu-img are those that the product ships, on a machine that has none of them.
//
// A package opts in with its TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(domaintest.Run(m)) }
//
// Run executes the test binary again, twice: first as process 1 of new mount, PID and IPC namespaces, which puts a
// throw-away overlay over build/launcher-root and reaps orphans as the launcher does, and below that as the tests
// themselves. Everything ends with the outermost process: mounts, processes, files.
//
// Inside, t.TempDir is on the machine's own file system (QEMU needs O_DIRECT), the working directory is the
// package's, in the repository, which is read-only, and GuestDir has what `make guest` built. It needs root. There is one libvirt in a root, so tests that call
// StartLibvirt do not run in parallel with each other.
package domaintest
