package files

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestEncodeName_keepsNamesApart(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"plain": "plain", "ä": "ä", "a\xffb": "a\ufffdffb", "\ufffdff": "\ufffdef\ufffdbf\ufffdbdff", "x.kopia-entry": "x\ufffd2ekopia-entry", ".kopia-entry.": ".kopia-entry.",
	} {
		if got := EncodeName(name); got != want {
			t.Errorf("%q is encoded as %q, want %q", name, got, want)
		}
	}
}

func FuzzEncodeName(f *testing.F) {
	f.Add("a\xff\xfe.kopia-entry")
	f.Fuzz(func(t *testing.T, name string) {
		encoded := EncodeName(name)
		if !utf8.ValidString(encoded) || strings.HasSuffix(encoded, ".kopia-entry") {
			t.Errorf("%q is encoded as %q", name, encoded)
		}
		if decoded, err := unescape(encoded); err != nil || decoded != name {
			t.Errorf("%q came back as %q, %v", name, decoded, err)
		}
	})
}

func TestDecodeName_refusesWhatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".", "..", "a/b", "/", "\ufffd2e\ufffd2e", "a\ufffd2fb", "\ufffd00", "\ufffd", "\ufffd2", "\ufffdzz"} {
		if got, err := DecodeName(name); err == nil {
			t.Errorf("%q is decoded as %q", name, got)
		}
	}
}

// The order is that of a walk, whatever the names are.
func TestComparePaths_isTheOrderOfAWalk(t *testing.T) {
	t.Parallel()
	type entry struct {
		path string
		dir  bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var walk func(path string, depth int) []entry
		walk = func(path string, depth int) (out []entry) {
			names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "a.b", "a-b", "b", "A", "ä"}), 0, 4, rapid.ID).Draw(t, "names")
			slices.Sort(names)
			var rest []entry
			for _, n := range names {
				if depth < 3 && rapid.Bool().Draw(t, "directory") {
					out = append(out, walk(joinPath(path, n), depth+1)...)
				} else {
					rest = append(rest, entry{joinPath(path, n), false})
				}
			}
			return append(append(out, rest...), entry{path, true})
		}
		all := walk(rootPath, 0)
		for i, a := range all {
			for j, b := range all {
				if got, want := comparePaths(a.path, a.dir, b.path, b.dir), min(1, max(-1, i-j)); got != want {
					t.Fatalf("%v and %v: %d, want %d", a, b, got, want)
				}
			}
		}
	})
}

func FuzzAttributes(f *testing.F) {
	f.Add([]byte(`{"stream":"varve:attributes","version":1}` + "\n" + `{"path":"a","data":[1,2]}` + "\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		a, err := newAttributesReader(bytes.NewReader(data))
		for err == nil && a.next != nil {
			err = a.advance()
		}
	})
}
