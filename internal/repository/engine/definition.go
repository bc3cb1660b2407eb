package engine

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/kopia/kopia/repo/object"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/table"
)

const (
	// DefinitionEntry is the file in the restore point's directory with the definition of the machine. No disk may have
	// this name.
	DefinitionEntry = "varve.definition"
	// MaxDefinitionBytes is the size of the largest definition that is stored.
	MaxDefinitionBytes = 512 << 10
)

// Definition describes the file varve.definition of a restore point: what it takes to make a machine of the disks
// again. The file may hold secrets: lists and manifests have this description, and nothing of the text.
type Definition struct {
	// Object is the kopia object with the file.
	Object object.ID `json:"object"`
	// Bytes is the size of the definition, without what the file has around it.
	Bytes int64 `json:"bytes"`
	// Digest is "sha256:" and the SHA-256 of the file.
	Digest string `json:"digest"`
}

// definitionFile is the content of varve.definition. The random nonce makes every file different. kopia stores a
// content once, and would take the file of an earlier restore point, or of an earlier attempt at this one, for stored.
// Garbage collection may be about to free that file, and no session manifest protects it.
type definitionFile struct {
	RestorePoint string          `json:"restorePoint"`
	Nonce        string          `json:"nonce"`
	Definition   json.RawMessage `json:"definition"`
}

// CheckDefinition says what is wrong with the definition for a restore point: errclass.Invalid. The error holds nothing
// of the text.
func CheckDefinition(definition []byte) error {
	if len(definition) > MaxDefinitionBytes {
		return fmt.Errorf("%w: the definition has %d bytes; the largest has %d", errclass.Invalid, len(definition),
			MaxDefinitionBytes)
	}
	if !json.Valid(definition) {
		return fmt.Errorf("%w: the definition is not JSON", errclass.Invalid)
	}
	if _, err := parseDefinition(composeDefinition("", "", definition)); err != nil {
		return fmt.Errorf("%w: the definition is nested too deeply", errclass.Invalid)
	}
	return nil
}

// EncodeDefinition returns the varve.definition of the restore point id. Each call returns another one.
func EncodeDefinition(id string, definition []byte) []byte {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // It never fails.
	return composeDefinition(id, hex.EncodeToString(nonce[:]), definition)
}

// composeDefinition keeps the definition byte for byte, which package json would not.
func composeDefinition(id, nonce string, definition []byte) []byte {
	head := fmt.Appendf(nil, `{"restorePoint":%q,"nonce":%q,"definition":`, id, nonce)
	return append(append(head, definition...), "}\n"...)
}

func parseDefinition(file []byte) (f definitionFile, err error) { return f, json.Unmarshal(file, &f) }

// NewDefinition describes a varve.definition that is stored as the object id and holds a definition of that many bytes.
func NewDefinition(id object.ID, file []byte, bytes int) *Definition {
	return &Definition{Object: id, Bytes: int64(bytes), Digest: digestOf(file)}
}

func digestOf(file []byte) string {
	sum := sha256.Sum256(file)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ReadDefinition returns the definition that a restore point has, as it was stored. Without one, the error is
// errclass.NotFound. If it is damaged, or of another restore point, the error is errclass.Corrupt.
func ReadDefinition(ctx context.Context, cr table.ContentReader, p *RestorePoint) ([]byte, error) {
	d := p.Definition
	if d == nil {
		return nil, fmt.Errorf("%w: restore point %s has no definition of a virtual machine", errclass.NotFound, p.ID)
	}
	where := fmt.Sprintf("%s of restore point %s", DefinitionEntry, p.ID)
	file, err := table.ReadObject(ctx, cr, d.Object, maxPointBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	if digest := digestOf(file); digest != d.Digest {
		return nil, fmt.Errorf("%w: %s has digest %s, not %s", errclass.Corrupt, where, digest, d.Digest)
	}
	f, err := parseDefinition(file)
	switch {
	case err != nil: // It might quote the text.
		return nil, fmt.Errorf("%w: %s is not JSON", errclass.Corrupt, where)
	case f.RestorePoint != p.ID:
		return nil, fmt.Errorf("%w: %s is of restore point %q", errclass.Corrupt, where, f.RestorePoint)
	case int64(len(f.Definition)) != d.Bytes:
		return nil, fmt.Errorf("%w: %s has a definition of %d bytes, not %d", errclass.Corrupt, where,
			len(f.Definition), d.Bytes)
	}
	return f.Definition, nil
}
