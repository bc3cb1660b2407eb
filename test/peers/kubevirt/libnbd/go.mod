// The calls of libnbd that KubeVirt makes. The module proxy refuses libnbd's own binding, so ../go.mod replaces it with
// this module.
module libguestfs.org/libnbd

go 1.24.0
