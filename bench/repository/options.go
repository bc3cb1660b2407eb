package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	tib = int64(1) << 40
)

// options are the command's flags.
type options struct {
	build, dir, profile string
	rounds              int
	imageGiB, corpusMiB int64
	blocks              blockSizes
	only                idList
}

func (o *options) setDefaults() (err error) {
	if o.corpusMiB == 0 {
		o.corpusMiB = o.imageGiB << 10 / 4
	}
	if o.rounds < 1 || o.imageGiB < 1 || o.corpusMiB < 64 || o.corpusMiB > o.imageGiB<<10 {
		return fmt.Errorf("give at least one round, an image of a GiB and 64 MiB of content that fits into it")
	}
	if len(o.blocks) > 0 && len(o.only) > 0 {
		return fmt.Errorf("-blocks has no rows that -only could select")
	}
	if o.dir == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("no directory for caches, give -dir: %w", err)
		}
		o.dir = filepath.Join(caches, "varve")
	}
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
	}
	for _, path := range []*string{&o.build, &o.dir, &o.profile} {
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return err
			}
		}
	}
	return nil
}

// peakBytes returns how many bytes the run may take at its peak: the image, two repositories of it and a restored copy.
// Each round adds some 15 % of the image to kopia's repository. The sparse disk is made when all that is gone.
func (o *options) peakBytes() int64 {
	rounds := int64(o.rounds)
	return max(5*o.corpusMiB*mib+rounds*o.imageGiB*gib/5, (4+4*rounds)*gib)
}

// idList is a list of row IDs.
type idList []string

// Set implements flag.Value.
func (l *idList) Set(text string) error {
	for id := range strings.SplitSeq(text, ",") {
		if !slices.ContainsFunc(rowIDs, func(known string) bool { return known == id }) {
			return fmt.Errorf("there is no row %s; there are %s", id, strings.Join(rowIDs, ", "))
		}
		*l = append(*l, id)
	}
	return nil
}

// String implements flag.Value.
func (l *idList) String() string { return strings.Join(*l, ",") }

// wantsAny says whether any of these rows is to be measured.
func (l *idList) wantsAny(ids ...string) bool {
	return len(*l) == 0 || slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(*l, id) })
}

// blockSizes are block sizes in the form of `varve disk backup --block-size`.
type blockSizes []string

// offered maps the names that -blocks accepts to Varve's block sizes.
var offered = map[string]string{"256k": "256KiB", "1m": "1MiB", "4m": "4MiB"}

// Set implements flag.Value.
func (b *blockSizes) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		size, ok := offered[strings.ToLower(name)]
		if !ok {
			return fmt.Errorf("block size %s: 256k, 1m or 4m", name)
		}
		*b = append(*b, size)
	}
	return nil
}

// String implements flag.Value.
func (b *blockSizes) String() string { return strings.Join(*b, ",") }
