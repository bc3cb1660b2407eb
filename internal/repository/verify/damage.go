package verify

import (
	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/extent"
	"github.com/varvebackup/varve/internal/repository/engine"
)

// Damage is a part of a disk that cannot be restored, or a whole disk if Extent is empty. Adjacent blocks are one part, and Err
// is what is wrong with the first of them. A region whose table is damaged is one part, too.
type Damage struct {
	Point *engine.RestorePoint
	// Disk is engine.DefinitionEntry if it is no disk but the definition of the machine, and engine.FilesName if it is a tree of files. File
	// is then the path of a file or directory in it, or "" if it concerns all of them.
	Disk   string
	File   string
	Extent extent.Extent
	Err    error
}

// damageError says briefly what is wrong with something that is stored. err, if not nil, is the error that showed it. A
// damageError is errclass.Corrupt.
type damageError struct {
	text string
	err  error
}

func (e *damageError) Error() string { return e.text }

func (e *damageError) Unwrap() []error {
	if e.err == nil {
		return []error{errclass.Corrupt}
	}
	return []error{errclass.Corrupt, e.err}
}

// regionDamage is what is wrong with a region: its table, or some of its blocks in order.
type regionDamage struct {
	table  error
	blocks []blockDamage
}

type blockDamage struct {
	block int
	err   error
}

// damageList collects the damage of one disk.
type damageList struct {
	disk string
	all  []Damage
	// table says whether the last entry of all is damage of tables.
	table bool
}

// addDamage adds what is wrong with e, which lies behind everything that was added before. It never merges a table's damage with that
// of blocks.
func (d *damageList) addDamage(e extent.Extent, err error, table bool) {
	if n := len(d.all); n > 0 && d.table == table && d.all[n-1].Extent.End() == e.Offset {
		d.all[n-1].Extent.Length += e.Length
		return
	}
	d.all = append(d.all, Damage{Disk: d.disk, Extent: e, Err: err})
	d.table = table
}
