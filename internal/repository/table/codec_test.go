package table

import (
	"encoding/hex"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kopia/kopia/repo/object"
	"pgregory.net/rapid"

	"github.com/varvebackup/varve/test/verdict"
)

// equalIDs compares objects by their text.
var equalIDs = cmp.Transformer("text", object.ID.String)

// Tables are the bytes that encoding/json makes of them, and are decoded to what they were.
func TestTablesAreJSON(t *testing.T) {
	t.Parallel()
	number := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, 1<<46))
	id := rapid.Custom(func(t *rapid.T) object.ID {
		prefix := rapid.SampledFrom([]string{"", "x", "Ix", "I", "k", "IIx"}).Draw(t, "prefix")
		hash := hex.EncodeToString(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "hash"))
		id, err := object.ParseID(prefix + hash)
		if err != nil {
			t.Fatal(err)
		}
		return id
	})
	entry := rapid.Custom(func(t *rapid.T) object.IndirectObjectEntry {
		return object.IndirectObjectEntry{Start: number.Draw(t, "start"), Length: number.Draw(t, "length"), Object: id.Draw(t, "object")}
	})
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(entry, 1, 20).Draw(t, "entries")
		want, err := json.Marshal(indirectObject{Stream: streamID, Entries: entries})
		if err != nil {
			t.Fatal(err)
		}
		got := Encode(entries)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			verdict.Fatalf(t, "%s", diff)
		}
		back, ok := parseEncoded(got)
		if diff := cmp.Diff(entries, back, equalIDs); !ok || diff != "" {
			verdict.Fatalf(t, "%v %s", ok, diff)
		}
		var spaced any
		if err := json.Unmarshal(want, &spaced); err != nil {
			t.Fatal(err)
		}
		other, err := json.MarshalIndent(spaced, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if back, err = Decode(other); err != nil || cmp.Diff(entries, back, equalIDs) != "" {
			verdict.Fatalf(t, "written otherwise: %v", err)
		}
	})
}

// What the fast way reads, encoding/json reads as the same.
func FuzzDecodeTable(f *testing.F) {
	for _, s := range []string{
		`{"stream":"kopia:indirect","entries":[{"l":262144,"o":"709f757b66fdfb48d0f8323744f1bd7e"},{"s":262144,"l":5,"o":"Ix0cce21c6cc23d53c46e1fab215077baf"}]}`,
		`{"stream":"kopia:indirect","entries":[]}`, `{"stream":"kopia:indirect","entries":[{"l":01,"o":""}]}`, `{"stream":"x","entries":[]}`, ``, `null`,
		`{"stream":"kopia:indirect","entries":[{"l":262144,"o":"709f757b66fdfb48d0f8323744f1bd7e"},]}`,
		`{"stream":"kopia:indirect","entries":[{"l":5,"o":"D0709f75"},{"s":5,"l":5,"o":"D0709f75"},{"s":10,"l":5,"o":"d0709f75"},{"s":15,"l":5,"o":"D0709f7"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fast, ok := parseEncoded(data)
		if !ok {
			_, _ = Decode(data) // It does not panic.
			return
		}
		var want indirectObject
		if err := json.Unmarshal(data, &want); err != nil || want.Stream != streamID {
			t.Fatalf("%q is read, and is not a table: %v", data, err)
		}
		if len(want.Entries)+len(fast) > 0 {
			if diff := cmp.Diff(want.Entries, fast, equalIDs); diff != "" {
				verdict.Errorf(t, "%s", diff)
			}
		}
	})
}

func BenchmarkTable(b *testing.B) {
	id, err := object.ParseID("709f757b66fdfb48d0f8323744f1bd7e")
	if err != nil {
		b.Fatal(err)
	}
	entries := make([]object.IndirectObjectEntry, RegionBlocks)
	for i := range entries {
		entries[i] = object.IndirectObjectEntry{Start: int64(i) * 256 << 10, Length: 256 << 10, Object: id}
	}
	data := Encode(entries)
	for name, f := range map[string]func(){
		"encode":      func() { Encode(entries) },
		"encode/json": func() { _, _ = json.Marshal(indirectObject{Stream: streamID, Entries: entries}) },
		"decode":      func() { parseEncoded(data) },
		"decode/json": func() { _ = json.Unmarshal(data, &indirectObject{}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				f()
			}
		})
	}
}
