package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/varvebackup/varve/internal/durable"
)

const (
	// cachedIndexDirectory is where kopia keeps its local copies of the indexes in a cache, and cachedIndexSuffix ends
	// their names.
	cachedIndexDirectory = "indexes"
	cachedIndexSuffix    = ".sndx"
	// indexSumsFile is the file in a cache with the checksums of these copies.
	indexSumsFile = "varve.indexes"
	// renewedPrefix begins the names of the directories in a cache in which the copies are made anew. Those of a process
	// that died are removed after renewedLife.
	renewedPrefix = "varve-renewed-"
	renewedLife   = 24 * time.Hour
)

// CachedIndexes watches over kopia's local copies of the indexes in a cache. kopia maps them into memory without
// checking them: after a loss of power one may be empty, or have zeros where its end was, and restore points would seem
// to be gone, or packs to be damaged. A copy of a name never changes, so its checksum is recorded once.
//
// Other processes may use the cache. So a copy is replaced, but never removed: kopia fails if one is gone that it has
// just seen.
type CachedIndexes struct {
	cache string
	sums  map[string]indexSum
	// distrusted are the copies that were changed or that nobody has recorded.
	distrusted map[string]bool
}

// indexSum is what was recorded of a copy. As long as the file is the same, it is read once after each start of the
// machine.
type indexSum struct {
	CRC32C uint32     `json:"crc32c"`
	Bytes  int64      `json:"bytes"`
	Read   fileStatus `json:"read"`
}

// fileStatus tells whether a file was written to since.
type fileStatus struct {
	Boot    string `json:"boot,omitempty"`
	Inode   uint64 `json:"inode"`
	Changed int64  `json:"changed"`
}

// ExamineCachedIndexes reads the copies in a cache that may have changed since they were recorded. What cannot be read
// is not to be trusted.
func ExamineCachedIndexes(cache string) *CachedIndexes {
	c := &CachedIndexes{cache: cache, sums: readIndexSums(cache), distrusted: map[string]bool{}}
	for _, name := range c.copyNames() {
		sum, known := c.sums[name]
		now, writtenSinceBoot, err := statIndex(c.copyPath(name))
		switch {
		case err != nil:
			c.distrusted[name] = true
		case known && now == sum.Read:
		case !known && writtenSinceBoot: // by a process that is still running, or was killed
		default:
			read, err := sumIndex(c.copyPath(name))
			if c.distrusted[name] = err != nil || !known || read.CRC32C != sum.CRC32C || read.Bytes != sum.Bytes; !c.distrusted[name] {
				c.sums[name] = read
			}
		}
	}
	maps.DeleteFunc(c.distrusted, func(_ string, bad bool) bool { return !bad })
	return c
}

// Trusted says whether all copies can be trusted.
func (c *CachedIndexes) Trusted() bool { return len(c.distrusted) == 0 }

// DistrustAll makes Renew take over nothing.
func (c *CachedIndexes) DistrustAll() {
	for _, name := range c.copyNames() {
		c.distrusted[name] = true
	}
}

// Renew calls load with a new directory for a cache, which holds the copies that can be trusted, and takes over those
// that load adds. It returns load's error as it is.
func (c *CachedIndexes) Renew(load func(cache string) error) (err error) {
	c.removeLeftovers()
	dir, err := os.MkdirTemp(c.cache, renewedPrefix)
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, cachedIndexDirectory), 0o700)
	}
	if err != nil {
		return &CacheError{Directory: c.cache, Err: err}
	}
	defer func() { _ = os.RemoveAll(dir) }() // removed later otherwise
	for _, name := range c.copyNames() {
		if !c.distrusted[name] {
			_ = os.Link(c.copyPath(name), filepath.Join(dir, cachedIndexDirectory, name)) // loaded otherwise
		}
	}
	if err := load(dir); err != nil {
		return err
	}
	fresh := &CachedIndexes{cache: dir}
	for _, name := range fresh.copyNames() {
		if err := os.MkdirAll(filepath.Join(c.cache, cachedIndexDirectory), 0o700); err != nil {
			return &CacheError{Directory: c.cache, Err: err}
		}
		if _, err := os.Stat(c.copyPath(name)); err == nil && !c.distrusted[name] {
			continue
		}
		if err := os.Rename(fresh.copyPath(name), c.copyPath(name)); err != nil {
			return &CacheError{Directory: c.cache, Err: err}
		}
		delete(c.distrusted, name)
		delete(c.sums, name)
	}
	return nil
}

// removeLeftovers removes what processes left that died in Renew.
func (c *CachedIndexes) removeLeftovers() {
	now := clock.RealClock{}.Now()
	old, _ := filepath.Glob(filepath.Join(c.cache, renewedPrefix+"*"))
	for _, path := range old {
		if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()) > renewedLife {
			_ = os.RemoveAll(path) // it only takes space
		}
	}
}

// Record records the copies that kopia has made since.
func (c *CachedIndexes) Record() error {
	now := readIndexSums(c.cache) // with what other processes have recorded
	maps.Copy(now, c.sums)
	there := map[string]bool{}
	for _, name := range c.copyNames() {
		if c.distrusted[name] {
			continue
		}
		there[name] = true
		if _, ok := now[name]; ok {
			continue
		}
		sum, err := sumIndex(c.copyPath(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // kopia removes what is not used any more
		}
		if err != nil {
			return &CacheError{Directory: c.cache, Err: err}
		}
		now[name] = sum
	}
	maps.DeleteFunc(now, func(name string, _ indexSum) bool { return !there[name] })
	c.sums = now
	if maps.Equal(now, readIndexSums(c.cache)) {
		return nil
	}
	data, err := json.Marshal(now)
	if err == nil {
		err = durable.Write(filepath.Join(c.cache, indexSumsFile), data)
	}
	if err != nil {
		return &CacheError{Directory: c.cache, Err: err}
	}
	return nil
}

// copyNames returns the names of the copies' files.
func (c *CachedIndexes) copyNames() (out []string) {
	entries, _ := os.ReadDir(filepath.Join(c.cache, cachedIndexDirectory)) // kopia says why it cannot be read
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), cachedIndexSuffix) {
			out = append(out, e.Name())
		}
	}
	return out
}

func (c *CachedIndexes) copyPath(name string) string {
	return filepath.Join(c.cache, cachedIndexDirectory, name)
}

// readIndexSums returns what was recorded; nothing if the record cannot be read.
func readIndexSums(cache string) map[string]indexSum {
	out := map[string]indexSum{}
	data, err := os.ReadFile(filepath.Join(cache, indexSumsFile))
	if err != nil || json.Unmarshal(data, &out) != nil || out == nil {
		return map[string]indexSum{}
	}
	return out
}

// sumIndex reads a copy.
func sumIndex(path string) (indexSum, error) {
	status, _, err := statIndex(path)
	if err != nil {
		return indexSum{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return indexSum{}, err
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(h, f)
	return indexSum{CRC32C: h.Sum32(), Bytes: n, Read: status}, err
}

// statIndex returns the status of a file, and whether it was written since the machine was started.
func statIndex(path string) (fileStatus, bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileStatus{}, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fileStatus{}, false, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return fileStatus{}, false, os.NewSyscallError("clock_gettime", err)
	}
	changed := time.Unix(st.Ctim.Unix())
	since := clock.RealClock{}.Since(changed) < time.Duration(up.Nano())
	return fileStatus{Boot: strings.TrimSpace(string(boot)), Inode: st.Ino, Changed: changed.UnixNano()}, since, nil
}

// CacheError is an error of a cache, not of the storage.
type CacheError struct {
	Directory string
	Err       error
}

func (e *CacheError) Error() string { return fmt.Sprintf("the cache in %s: %s", e.Directory, e.Err) }

// Unwrap is for errors.Is and errors.As.
func (e *CacheError) Unwrap() error { return e.Err }

// cachedBlobDirectories are where kopia keeps copies of blobs in a cache.
var cachedBlobDirectories = []string{"contents", "metadata", "index-blobs", "blob-list"}

// DropCachedBlobs removes all copies of blobs and contents from a cache, also from under other processes, which then
// read the storage.
func DropCachedBlobs(cache string) error {
	var all []error
	for _, dir := range cachedBlobDirectories {
		err := filepath.WalkDir(filepath.Join(cache, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				err = os.Remove(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		all = append(all, err)
	}
	if err := errors.Join(all...); err != nil {
		return &CacheError{Directory: cache, Err: err}
	}
	return nil
}
