// The types of kubevirt.io/virt-template-api v0.2.0 that KubeVirt 1.9 names. The module proxy refuses that version, so
// ../go.mod replaces it with this module. No test has templates.
module kubevirt.io/virt-template-api

go 1.24.0

require k8s.io/apimachinery v0.34.2
