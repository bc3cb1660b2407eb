// Package version holds the version of this build.
package version

// Version is set by the linker; a build without it is "devel".
var Version = "devel"
