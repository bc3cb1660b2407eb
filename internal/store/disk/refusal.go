package disk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// What disks of every kind refuse, so that they refuse it with the same words.

// maxClones is how many clones an error names.
const maxClones = 10

// CheckClones returns Conflict with the names of the clones that keep an object from being deleted, or nil if there are
// none. It sorts the names.
func CheckClones(clones []Name) error {
	if len(clones) == 0 {
		return nil
	}
	slices.Sort(clones)
	var quoted []string
	for _, c := range clones[:min(len(clones), maxClones)] {
		quoted = append(quoted, fmt.Sprintf("%q", c))
	}
	if more := len(clones) - len(quoted); more > 0 {
		quoted = append(quoted, fmt.Sprintf("and %d more", more))
	}
	return errclass.Errorf(errclass.Conflict, "clones of it are there: %s: delete them first", strings.Join(quoted, ", "))
}

// CheckImage returns NotFound if an object does not have the UID of the image that is wanted, and Invalid if it is not
// an image.
func (o Object) CheckImage(wanted UID) error {
	switch {
	case o.UID != wanted:
		return errclass.Errorf(errclass.NotFound, "it has the UID %s, not %s", o.UID, wanted)
	case o.Kind != KindImage:
		return errclass.Errorf(errclass.Invalid, "it is a %s, not an image", o.Kind)
	}
	return nil
}

// CheckHead returns an error if s cannot be made of a head now. Sealing means that another call of Snapshot is at work
// on the head, and leases is how many users it has.
func (s Seal) CheckHead(head Object, sealing bool, leases int) error {
	switch {
	case head.Kind != KindHead:
		return errclass.Errorf(errclass.Invalid, "%q is a %s, not a head: clone it", head.Name, head.Kind)
	case s.Bytes > head.Bytes:
		return errclass.Errorf(errclass.Invalid, "%d bytes are more than the %d that %q has", s.Bytes, head.Bytes, head.Name)
	case sealing:
		return errclass.Errorf(errclass.Transient, "another snapshot of it is being made: try again")
	case s.Exclusive && leases > 0:
		return errclass.Errorf(errclass.Conflict, "it is in use (%d times): end that first", leases)
	}
	return nil
}
