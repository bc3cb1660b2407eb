package server

import (
	"strconv"

	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// encodePage returns a page as JSON. A page can have thousands of regions, so no value is made of each.
func encodePage(info export.Info, m mapRequest, p page) []byte {
	text := append(make([]byte, 0, 128+64*len(p.regions)), '{')
	end := m.scan.End()
	if m.asRegions {
		text = append(appendRegions(append(text, `"regions":[`...), info, m, p.regions), `],`...)
		end = info.Bytes
	}
	if m.asExtents {
		text = append(appendExtents(append(text, `"extents":[`...), m, p.regions), `],`...)
	}
	text = append(text, `"next_offset":`...)
	if p.covered < end {
		text = strconv.AppendInt(text, p.covered, 10)
	} else {
		text = append(text, "null"...)
	}
	text = append(text, `,"size":`...)
	text = strconv.AppendInt(text, info.Bytes, 10)
	return append(text, "}\n"...)
}

// appendRegions writes regions as the spec has them.
func appendRegions(text []byte, info export.Info, m mapRequest, regions []export.Region) []byte {
	for _, r := range regions {
		if r.Kind == export.Clean && m.asExtents {
			continue // the page has it for the other dialect
		}
		name := "data"
		switch {
		case r.Kind == export.Clean:
			name = "clean"
		case r.Kind == export.Zero:
			name = "zero"
		case info.Incremental:
			name = "dirty"
		}
		text = appendExtent(text, r.Extent)
		text = append(append(append(text, `"type":"`...), name...), `"}`...)
	}
	return text
}

// appendExtents writes regions as KubeVirt 1.8 does: type has the flags of NBD's block status, of base:allocation in a
// full backup and of the dirty bitmap in an incremental.
func appendExtents(text []byte, m mapRequest, regions []export.Region) []byte {
	for i := 0; i < len(regions); i++ {
		e, suffix := regions[i].Extent, extentSuffix(regions[i].Kind, m.changes)
		for i+1 < len(regions) && regions[i+1].Offset == e.End() && extentSuffix(regions[i+1].Kind, m.changes) == suffix {
			i++
			e.Length += regions[i].Length
		}
		text = append(appendExtent(text, e), suffix...)
	}
	return text
}

func extentSuffix(kind export.Kind, changes bool) string {
	switch {
	case kind == export.Clean:
		return `"type":0,"description":"clean"}`
	case changes:
		return `"type":1,"description":"dirty"}`
	case kind == export.Zero:
		return `"type":3,"description":"hole,zero"}`
	}
	return `"type":0,"description":"data"}`
}

// appendExtent begins an element of a list.
func appendExtent(text []byte, e extent.Extent) []byte {
	if text[len(text)-1] != '[' {
		text = append(text, ',')
	}
	text = append(text, `{"offset":`...)
	text = strconv.AppendInt(text, e.Offset, 10)
	text = append(text, `,"length":`...)
	text = strconv.AppendInt(text, e.Length, 10)
	return append(text, ',')
}
