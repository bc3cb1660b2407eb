package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

// EachEntry calls call with each entry of one of kopia's directories, in its order: directories first, then the rest, each sorted by
// name. It does not keep them: a directory may have millions. What is not as this package's Upload stores it is errclass.Corrupt, and
// so are two entries of one name, or a name that leads elsewhere.
func EachEntry(ctx context.Context, cr table.ContentReader, id object.ID, call func(*snapshot.DirEntry) error) error {
	r, err := table.OpenObject(ctx, cr, id)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it only reads
	d := dirDecoder{json: json.NewDecoder(r), id: id, call: call}
	err = d.decode(ctx)
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: directory %s: %w", errclass.Corrupt, id, err)
	}
	if err != nil && table.IsMissing(err) {
		return table.WrapReadError(fmt.Sprintf("read directory %s", id), err)
	}
	return err
}

// dirDecoder reads the JSON of a directory.
type dirDecoder struct {
	json *json.Decoder
	id   object.ID
	call func(*snapshot.DirEntry) error
	last *snapshot.DirEntry
}

func (d *dirDecoder) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: directory %s: %s", errclass.Corrupt, d.id, fmt.Sprintf(format, args...))
}

func (d *dirDecoder) decode(ctx context.Context) error {
	if err := d.expect(json.Delim('{')); err != nil {
		return err
	}
	for d.json.More() {
		key, err := d.json.Token()
		if err != nil {
			return err
		}
		switch key {
		case "entries":
			err = d.decodeEntries(ctx)
		case "stream":
			err = d.expect("kopia:directory")
		default:
			var rest json.RawMessage
			err = d.json.Decode(&rest)
		}
		if err != nil {
			return err
		}
	}
	return d.expect(json.Delim('}'))
}

func (d *dirDecoder) expect(want json.Token) error {
	got, err := d.json.Token()
	if err == nil && got != want {
		err = d.corrupt("%v instead of %v", got, want)
	}
	return err
}

func (d *dirDecoder) decodeEntries(ctx context.Context) error {
	begin, err := d.json.Token()
	if err != nil {
		return err
	}
	if begin == nil { // An empty directory has null.
		return nil
	}
	if begin != json.Delim('[') {
		return d.corrupt("%v instead of a list", begin)
	}
	for d.json.More() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := &snapshot.DirEntry{}
		if err := d.json.Decode(e); err != nil {
			return err
		}
		if err := d.check(e); err != nil {
			return err
		}
		if err := d.call(e); err != nil {
			return err
		}
	}
	return d.expect(json.Delim(']'))
}

// check checks the next entry.
func (d *dirDecoder) check(e *snapshot.DirEntry) error {
	if _, err := DecodeName(e.Name); err != nil {
		return err
	}
	switch e.Type {
	case snapshot.EntryTypeFile, snapshot.EntryTypeDirectory, snapshot.EntryTypeSymlink:
	default:
		return d.corrupt("%q is of type %q", e.Name, e.Type)
	}
	if d.last != nil && comparePaths(d.last.Name, isDir(d.last), e.Name, isDir(e)) >= 0 {
		return d.corrupt("%q comes after %q", e.Name, d.last.Name)
	}
	d.last = e
	return nil
}

func isDir(e *snapshot.DirEntry) bool { return e.Type == snapshot.EntryTypeDirectory }

// CheckAttributes reads attributes, and says what is wrong with them.
func CheckAttributes(ctx context.Context, cr table.ContentReader, id object.ID) error {
	r, err := table.OpenObject(ctx, cr, id)
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // it only reads
	a, err := newAttributesReader(r)
	for err == nil && a.next != nil && ctx.Err() == nil {
		err = a.advance()
	}
	if err == nil {
		return context.Cause(ctx)
	}
	return table.WrapReadError("read "+Name, err)
}

// PathOf returns the path of what has an encoded name in a directory, as Walk passes both. It is not encoded, unless the name is damaged.
func PathOf(dir, encoded string) string {
	if dir == "" {
		return rootPath
	}
	at := joinPath(dir, encoded)
	if plain, err := unescape(at); err == nil {
		return plain
	}
	return at
}
