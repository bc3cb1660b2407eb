// Package definition is what a backup keeps of a virtual machine besides its disks: the machine with its labels and
// annotations, the claims of its disks, and the Secrets and ConfigMaps that it refers to. It is stored with the disks,
// in the repository, encrypted like them.
//
// Machines are handled as unstructured objects, so that fields which Varve does not know come back, too.
package definition
