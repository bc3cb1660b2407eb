package datamove

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func TestSnapshotID_survivesItsText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := SnapshotID{
			Form:      rapid.SampledFrom([]Form{Disk, Files}).Draw(t, "form"),
			Point:     rapid.StringMatching(`[0-9a-f]{32}`).Draw(t, "point"),
			Namespace: rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?`).Draw(t, "namespace"),
		}
		if got, err := ParseSnapshotID(id.String()); err != nil || got != id {
			t.Errorf("%s: %v, %v", id, got, err)
		}
	})
}

func TestParseSnapshotID_refuses(t *testing.T) {
	t.Parallel()
	point := strings.Repeat("0a", 16)
	for text, says := range map[string]string{
		"":                                  "not written by this version",
		"5f1d7c6a":                          "not written by this version",
		"varve2.disk." + point + ".app":     "not written by this version",
		"varve1.disk." + point:              "not written by this version",
		"varve1.tape." + point + ".app":     `form "tape"`,
		"varve1.disk." + point[1:] + ".app": "32 hexadecimal digits",
		"varve1.disk." + strings.ToUpper(point) + ".app": "32 hexadecimal digits",
		"varve1.disk." + point + ".":                     "not a namespace",
		"varve1.disk." + point + ".My_NS":                "not a namespace",
		"varve1.disk." + point + ".a/b":                  "not a namespace",
		"varve1.disk." + point + ".a.b":                  "not a namespace",
	} {
		if id, err := ParseSnapshotID(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v", text, id, err)
		}
	}
}

func TestPointID_comesFromTheUID(t *testing.T) {
	t.Parallel()
	for _, uid := range []types.UID{"8debd2ab-3755-4700-9509-044e0dca1dc6", "8DEBD2AB-3755-4700-9509-044E0DCA1DC6"} {
		if id, err := PointID(uid); err != nil || id != "8debd2ab375547009509044e0dca1dc6" {
			t.Errorf("%s: %s, %v", uid, id, err)
		}
	}
	for _, uid := range []types.UID{"", "x", "8debd2ab-3755-4700-9509-044e0dca1dcg", "8debd2ab-3755-4700-9509-044e0dca1dc"} {
		if id, err := PointID(uid); err == nil {
			t.Errorf("%q: %s", uid, id)
		}
	}
}

func FuzzParseSnapshotID(f *testing.F) {
	f.Add("varve1.disk." + strings.Repeat("0a", 16) + ".app")
	f.Add("varve1.files.." + strings.Repeat("0", 32))
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := ParseSnapshotID(text); err == nil && id.String() != text {
			t.Errorf("%q became %q", text, id)
		}
	})
}
