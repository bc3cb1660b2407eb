// Package harvester reads the objects that Varve serves in harvesterhci.io/v1beta1 with Harvester's own types. It is a
// module of its own: Harvester needs other versions of Kubernetes' modules than Varve.
package harvester
