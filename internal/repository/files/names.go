package files

import (
	"encoding/hex"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/kopia/kopia/fs/localfs"

	"github.com/varvebackup/varve/internal/errclass"
)

// escape begins an escaped byte in an encoded name: two hexadecimal digits follow. It is what Go, and thus kopia, writes in place of
// a byte that is not UTF-8, and so it is rare in names.
const escape = string(utf8.RuneError)

// EncodeName returns the name of a file as kopia's directories have it, which is UTF-8. No two names are encoded alike. It escapes
// bytes that are not UTF-8, the bytes of U+FFFD, and the dot of the suffix that means something to the kopia CLI.
func EncodeName(name string) string {
	dot := len(name) - len(localfs.ShallowEntrySuffix)
	if !strings.HasSuffix(name, localfs.ShallowEntrySuffix) {
		dot = -1
	}
	if dot < 0 && utf8.ValidString(name) && !strings.Contains(name, escape) {
		return name
	}
	var out strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r != utf8.RuneError && i != dot {
			out.WriteString(name[i : i+n])
			i += n
			continue
		}
		for range n {
			out.WriteString(escape + hex.EncodeToString([]byte{name[i]}))
			i++
		}
	}
	return out.String()
}

// DecodeName returns the name that EncodeName encoded. What cannot be the name of a file is errclass.Corrupt.
func DecodeName(encoded string) (string, error) {
	name, err := unescape(encoded)
	if err != nil || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return "", fmt.Errorf("%w: the name of a file is %q", errclass.Corrupt, encoded)
	}
	return name, nil
}

func unescape(encoded string) (string, error) {
	first, rest, escaped := strings.Cut(encoded, escape)
	if !escaped {
		return encoded, nil
	}
	out := []byte(first)
	for part := range strings.SplitSeq(rest, escape) {
		if len(part) < 2 {
			return "", hex.ErrLength
		}
		b, err := hex.DecodeString(part[:2])
		if err != nil {
			return "", err
		}
		out = append(append(out, b...), part[2:]...)
	}
	return string(out), nil
}

// rootPath is the path of the root itself.
const rootPath = "."

// encodePath encodes a path below the root.
func encodePath(raw string) string {
	if utf8.ValidString(raw) && !strings.Contains(raw, escape) && !strings.Contains(raw, localfs.ShallowEntrySuffix) {
		return raw
	}
	parts := strings.Split(raw, "/")
	for i, p := range parts {
		parts[i] = EncodeName(p)
	}
	return strings.Join(parts, "/")
}

// joinPath is path.Join for a name that needs no cleaning.
func joinPath(dir, name string) string {
	if dir == rootPath {
		return name
	}
	return dir + "/" + name
}

// comparePaths orders paths as a tree is walked: what is in a directory before the directory, directories before everything else, and
// each in the order of their encoded names.
func comparePaths(a string, aDir bool, b string, bDir bool) int {
	switch {
	case a == b && aDir == bDir:
		return 0
	case a == rootPath:
		return 1
	case b == rootPath:
		return -1
	}
	for {
		aName, aRest, aMore := strings.Cut(a, "/")
		bName, bRest, bMore := strings.Cut(b, "/")
		if aName != bName || !aMore || !bMore {
			return compareNames(aName, aMore, aMore || aDir, bName, bMore, bMore || bDir)
		}
		a, b = aRest, bRest
	}
}

// compareNames compares what two paths have in the same directory, where they differ or one ends. more says that the path goes on.
func compareNames(a string, aMore, aDir bool, b string, bMore, bDir bool) int {
	switch {
	case aDir && !bDir:
		return -1
	case bDir && !aDir:
		return 1
	case a != b:
		return strings.Compare(a, b)
	case aMore:
		return -1
	case bMore:
		return 1
	}
	return 0
}

// parentOf returns the directory of a path that is not the root's.
func parentOf(p string) string { return path.Dir(p) }
