package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/export"
	"github.com/varvebackup/varve/internal/extent"
)

// maxPageBytes bounds the JSON of a page. A region takes at least 35 bytes of it, so a page has less than half a million.
const maxPageBytes = 16 << 20

// page is a page of a map.
type page struct {
	// regions are those of the page, none of them empty, with a known kind, and otherwise as the server has them.
	regions []export.Region
	// next is where the next page begins; -1: there is none.
	next int64
	// size is the disk's; 0 if the server does not tell.
	size int64
}

// errPage is what a page that breaks its format is.
var errPage = errclass.New(errclass.Corrupt, "a page of the map is not as it should be")

// decodePage reads the JSON of a page. It has the list of its dialect, and says what follows, exactly once each: a page without its list
// would say that nothing has changed.
func decodePage(text io.Reader, dialect Dialect) (p page, err error) {
	list, decodeList := "regions", decodeRegion
	if dialect == KubeVirt {
		list, decodeList = "extents", decodeExtent
	}
	limited := &io.LimitedReader{R: text, N: maxPageBytes + 1}
	decoder := json.NewDecoder(limited)
	seen := map[string]bool{}
	err = decodeObject(decoder, func(key string) error {
		if seen[key] {
			return fmt.Errorf("%.40q is there twice", key)
		}
		switch key {
		case list:
			p.regions, err = decodeRegions(decoder, decodeList)
		case "next_offset":
			p.next, err = decodeNext(decoder)
		case "size":
			err = decoder.Decode(&p.size)
		default:
			var other json.RawMessage
			return decoder.Decode(&other)
		}
		seen[key] = true
		return err
	})
	switch {
	case limited.N <= 0:
		return page{}, errclass.Errorf(errPage, "a page of the map has more than %d bytes", maxPageBytes)
	case err != nil:
		return page{}, err
	case !seen[list] || !seen["next_offset"]:
		return page{}, errclass.Errorf(errPage, "a page of the map has no %s or no next_offset: the server speaks another dialect", list)
	case p.size < 0:
		return page{}, errclass.Errorf(errPage, "a page of the map is of a disk of %d bytes", p.size)
	}
	return p, nil
}

// decodeObject reads the only JSON object of an input, and calls field for each key. Failures of the input itself are returned as they
// are; others are errPage.
func decodeObject(decoder *json.Decoder, field func(key string) error) error {
	if err := expectDelimiter(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return classifyJSON(err)
		}
		key, _ := token.(string) // Keys of objects are strings.
		if err := field(key); err != nil {
			return classifyJSON(err)
		}
	}
	if err := expectDelimiter(decoder, '}'); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		if err == nil {
			err = errors.New("something follows it")
		}
		return classifyJSON(err)
	}
	return nil
}

func expectDelimiter(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err != nil {
		return classifyJSON(err)
	}
	if token != want {
		return errclass.Errorf(errPage, "a page of the map: %.40q in place of %s", fmt.Sprint(token), want)
	}
	return nil
}

// readError is a failure of the input, and not of what is in it.
type readError struct{ err error }

func (f *readError) Error() string { return f.err.Error() }
func (f *readError) Unwrap() error { return f.err }

// bodyReader marks the failures of an answer's body, of which one is that it ends early.
type bodyReader struct{ io.Reader }

func (r bodyReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}

func classifyJSON(err error) error {
	var failed *readError
	switch {
	case errors.As(err, &failed):
		return failed.err
	case errclass.Of(err) != errclass.None:
		return err
	}
	return errclass.Errorf(errPage, "a page of the map: %w", err)
}

// decodeNext reads an offset or null.
func decodeNext(decoder *json.Decoder) (int64, error) {
	var next *int64
	if err := decoder.Decode(&next); err != nil {
		return 0, err
	}
	switch {
	case next == nil:
		return -1, nil
	case *next < 0:
		return 0, fmt.Errorf("next_offset is %d", *next)
	}
	return *next, nil
}

// decodeRegions reads a list of regions. Each is checked before the next one is read, so that a page cannot take more memory than its text
// allows.
func decodeRegions(decoder *json.Decoder, decode func(*json.Decoder) (export.Region, string, error)) ([]export.Region, error) {
	if err := expectDelimiter(decoder, '['); err != nil {
		return nil, err
	}
	var all []export.Region
	for decoder.More() {
		r, kind, err := decode(decoder)
		if err != nil {
			return nil, err
		}
		if !r.Valid() || r.Empty() || r.Kind == 0 {
			return nil, errclass.Errorf(errPage, "the map has a region %.40q of %d bytes at %d", kind, r.Length, r.Offset)
		}
		all = append(all, r)
	}
	return all, expectDelimiter(decoder, ']')
}

// specKinds are the types of regions. What is a hole and not zero may hold anything.
var specKinds = map[string]export.Kind{
	"data": export.Data, "hole": export.Data, "dirty": export.Data, "zero": export.Zero, "hole,zero": export.Zero, "clean": export.Clean,
}

// decodeRegion reads a region of the dialect Spec.
func decodeRegion(decoder *json.Decoder) (export.Region, string, error) {
	var r struct {
		Offset *int64 `json:"offset"`
		Length int64  `json:"length"`
		Type   string `json:"type"`
	}
	if err := decoder.Decode(&r); err != nil {
		return export.Region{}, "", err
	}
	if r.Offset == nil {
		return export.Region{}, "", errors.New("a region has no offset")
	}
	return export.Region{Extent: extent.Extent{Offset: *r.Offset, Length: r.Length}, Kind: specKinds[r.Type]}, r.Type, nil
}

// nbdState are the flags of NBD's block status, and what they say.
type nbdState struct {
	flags int
	kind  export.Kind
}

// nbdStates are the descriptions of extents. What is a hole and not zero may hold anything (NBD protocol, "base:allocation").
var nbdStates = map[string]nbdState{
	"data": {0, export.Data}, "hole": {1, export.Data}, "zero": {2, export.Zero}, "hole,zero": {3, export.Zero},
	"clean": {0, export.Clean}, "dirty": {1, export.Data},
}

// decodeExtent reads an extent of the dialect KubeVirt. Its two types must agree.
func decodeExtent(decoder *json.Decoder) (export.Region, string, error) {
	var e struct {
		Offset      *int64 `json:"offset"`
		Length      int64  `json:"length"`
		Type        *int   `json:"type"`
		Description string `json:"description"`
	}
	if err := decoder.Decode(&e); err != nil {
		return export.Region{}, "", err
	}
	if e.Offset == nil {
		return export.Region{}, "", errors.New("an extent has no offset")
	}
	state := nbdStates[e.Description]
	if e.Type != nil && *e.Type != state.flags {
		state.kind = 0
	}
	return export.Region{Extent: extent.Extent{Offset: *e.Offset, Length: e.Length}, Kind: state.kind}, e.Description, nil
}
