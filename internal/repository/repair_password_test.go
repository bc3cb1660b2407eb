package repository

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/varvebackup/varve/test/verdict"
)

// A repair takes from the copy what is missing or damaged, and nothing else: the copy is from before a change of the
// password.
func TestRepair_undoesNoChangeOfThePassword(t *testing.T) {
	t.Parallel()
	const repository, settings, changed = "kopia.repository", "kopia.blobcfg", "a newer password"
	r, config := newRepository(t)
	disk, _ := twoRegions(t, r)
	point, err := r.Backup(t.Context(), Request{Source: testSource, Time: time.Unix(2, 0), Disks: []DiskSource{disk.source(true)}})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{repository: blobFiles(t, config, repository)[0], settings: blobFiles(t, config, settings)[0]}
	read := func() map[string][]byte {
		out := map[string][]byte{}
		for id, path := range files {
			data, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err == nil {
				out[id] = data
			}
		}
		return out
	}
	older := read()
	if err := r.conn.Kopia.FormatManager().ChangePassword(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	newer := read()
	flip := func(data []byte) []byte { // JSON stays JSON
		data = bytes.Clone(data)
		at := bytes.Index(data, []byte(`"encryptedBlockFormat"`))
		if at < 0 {
			data[len(data)/2] ^= 1
			return data
		}
		at += 100
		data[at] = map[bool]byte{true: 'B', false: 'A'}[data[at] == 'A']
		return data
	}
	for name, c := range map[string]struct {
		repository, settings []byte
		password             string
		refused              bool
		restored             []string
	}{
		"the old password":                          {newer[repository], newer[settings], testPassword, true, nil},
		"the old password, settings missing":        {newer[repository], nil, testPassword, true, nil},
		"the new password, settings missing":        {newer[repository], nil, changed, false, nil},
		"a change that was cut off":                 {older[repository], newer[settings], testPassword, false, []string{settings}},
		"settings of before":                        {newer[repository], older[settings], testPassword, false, []string{repository}},
		"missing":                                   {nil, older[settings], testPassword, false, []string{repository}},
		"missing, and a wrong password":             {nil, older[settings], changed, true, nil},
		"missing after the change":                  {nil, newer[settings], testPassword, false, []string{settings, repository}},
		"not JSON":                                  {[]byte("}"), older[settings], testPassword, false, []string{repository}},
		"without its algorithms":                    {[]byte(`{"uniqueID":"AAAA"}`), older[settings], testPassword, false, []string{repository}},
		"other bytes":                               {flip(older[repository]), older[settings], testPassword, false, []string{repository}},
		"settings missing":                          {older[repository], nil, testPassword, false, []string{settings}},
		"other bytes in the settings":               {older[repository], flip(older[settings]), testPassword, false, []string{settings}},
		"other bytes in the newer settings":         {newer[repository], flip(newer[settings]), testPassword, true, nil},
		"other bytes in the newer format's content": {flip(newer[repository]), newer[settings], testPassword, true, nil},
	} {
		state := map[string][]byte{repository: c.repository, settings: c.settings}
		maps.DeleteFunc(state, func(_ string, data []byte) bool { return data == nil })
		for id, path := range files {
			err := os.RemoveAll(path)
			if data := state[id]; err == nil && data != nil {
				err = os.WriteFile(path, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		report, err := Repair(t.Context(), config, c.password, false)
		if refused := errors.Is(err, ErrPassword); refused != c.refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := maps.Clone(state)
		for _, id := range c.restored {
			want[id] = older[id]
		}
		if !maps.EqualFunc(read(), want, bytes.Equal) {
			verdict.Errorf(t, "%s: repair changed the format: %+v", name, report)
		}
		if err == nil && !slices.Equal(report.Format, c.restored) {
			t.Errorf("%s: %v", name, report.Format)
		}
	}
	for id, path := range files {
		if err := os.WriteFile(path, newer[id], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(t.Context(), config, testPassword); !errors.Is(err, ErrPassword) {
		t.Errorf("with the old password: %v", err)
	}
	fresh, err := Open(t.Context(), config, changed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fresh.Close(t.Context()) })
	same(t, fresh, point, disk.data)
}
