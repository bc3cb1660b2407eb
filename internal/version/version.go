// Package version holds the version that a binary was built as.
package version

// Version is set by the linker; a build without it is "devel".
var Version = "devel"
