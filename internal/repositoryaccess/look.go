package repositoryaccess

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/location"
)

// Task is what a Look does.
type Task string

const (
	// TryLocation tries Root: see Store.Try.
	TryLocation Task = "try"
	// LookAround looks whether the repository is there, and which others are.
	LookAround Task = "look"
	// PrepareRepository tries the location and makes the repository, or tries its password.
	PrepareRepository Task = "prepare"
	// CheckRepository looks whether the repository is still there.
	CheckRepository Task = "check"
)

// Look is a look into the storage of a location. Where only pods can look, a pod gets it as JSON, without the password.
type Look struct {
	Task Task `json:"task"`
	// Root is the directory of all repositories: see location.Place.
	Root datamove.Access `json:"root"`
	// Write has TryLocation write, too.
	Write bool `json:"write,omitempty"`
	// Catalogue has TryLocation say which repositories are there beside Known, too.
	Catalogue bool `json:"catalogue,omitempty"`
	// Access is the repository's. Lock is for one that is made.
	Access datamove.Access `json:"access"`
	Lock   location.Lock   `json:"lock"`
	// Known are the namespaces whose repositories do not count as others.
	Known []string `json:"known,omitempty"`
	// SharedPassword: a repository is only made with a password that opens another one of the location, if there is one.
	SharedPassword bool `json:"sharedPassword,omitempty"`
	// Words are those of a failure.
	Words Words `json:"words"`
}

// Seen is what a Look has seen.
type Seen struct {
	// Failure is what went wrong, as Explain says it; "" if nothing did.
	Failure string `json:"failure,omitempty"`
	// UniqueID is the repository's, after PrepareRepository and CheckRepository.
	UniqueID string `json:"uniqueID,omitempty"`
	// Exists says whether the repository is there, and Found names a directory of the location with another one.
	Exists bool   `json:"exists,omitempty"`
	Found  string `json:"found,omitempty"`
	// Catalogue is what is there, after TryLocation; nil if it was not looked at, or could not be.
	Catalogue *Catalogue `json:"catalogue,omitempty"`
}

// Storages is what a Look needs of a Store.
type Storages interface {
	Try(ctx context.Context, root datamove.Access, write bool) error
	Exists(ctx context.Context, a datamove.Access) (bool, error)
	Find(ctx context.Context, root datamove.Access, known []string) (string, error)
	Prepare(ctx context.Context, a datamove.Access, lock location.Lock) (uniqueID string, err error)
	Check(ctx context.Context, a datamove.Access) error
	List(ctx context.Context, root datamove.Access, known []string, limit int) (Catalogue, error)
}

// Run looks.
func (l *Look) Run(ctx context.Context, s Storages) Seen {
	seen := Seen{UniqueID: l.Access.UniqueID}
	if err := l.run(ctx, s, &seen); err != nil {
		// Keys are the same for Root.
		secrets := l.Access
		if secrets.S3 == nil {
			secrets.S3 = l.Root.S3
		}
		seen.Failure = Explain(err, secrets, l.Words)
	}
	return seen
}

func (l *Look) run(ctx context.Context, s Storages, seen *Seen) (err error) {
	switch l.Task {
	case TryLocation:
		if err = s.Try(ctx, l.Root, l.Write); err == nil && l.Catalogue {
			err = l.list(ctx, s, seen)
		}
	case LookAround:
		if seen.Exists, err = s.Exists(ctx, l.Access); err == nil {
			seen.Found, err = s.Find(ctx, l.Root, l.Known)
		}
	case PrepareRepository:
		seen.Exists = true // or is made now
		if err = s.Try(ctx, l.Root, true); err == nil {
			err = l.tryPassword(ctx, s)
		}
		if err == nil {
			seen.UniqueID, err = s.Prepare(ctx, l.Access, l.Lock)
		}
	case CheckRepository:
		seen.Exists, err = true, s.Check(ctx, l.Access)
	default:
		err = fmt.Errorf("unknown task %q", l.Task)
	}
	return err
}

// catalogueBatch is how many repositories fit into a termination message, with the longest names.
const catalogueBatch = 20

func (l *Look) list(ctx context.Context, s Storages, seen *Seen) error {
	c, err := s.List(ctx, l.Root, l.Known, catalogueBatch)
	if err != nil {
		return err
	}
	if len(c.Unread) > maxUnreadBytes {
		c.Unread = strings.ToValidUTF8(c.Unread[:maxUnreadBytes], "") + "…"
	}
	seen.Catalogue = &c
	return nil
}

// tryPassword fails if a repository is about to be made with a password that its location's other repositories do not have: somebody has
// put a wrong one into the Secret.
func (l *Look) tryPassword(ctx context.Context, s Storages) error {
	if l.Access.UniqueID != "" || !l.SharedPassword {
		return nil
	}
	exists, err := s.Exists(ctx, l.Access)
	if err != nil || exists {
		return err
	}
	found, err := s.Find(ctx, l.Root, l.Known)
	if err != nil || found == "" {
		return err
	}
	other := below(l.Root, found)
	other.Password = l.Access.Password
	if _, err := s.Prepare(ctx, other, l.Lock); err != nil {
		return fmt.Errorf("try the password on the repository of namespace %s: %w", found, err)
	}
	return nil
}

// below returns the access to a directory of root's.
func below(root datamove.Access, name string) datamove.Access {
	if root.S3 == nil {
		root.Directory = path.Join(root.Directory, name)
		return root
	}
	bucket := *root.S3
	bucket.Prefix += name + "/"
	root.S3 = &bucket
	return root
}

// LookVariable is the environment variable of a pod that has its Look, as Encode writes it.
const LookVariable = "VARVE_LOOK"

// Encode returns the look as LookVariable has it: without the password. It panics on one with the keys of a bucket, which no variable may have.
func (l *Look) Encode() string {
	for _, a := range []datamove.Access{l.Root, l.Access} {
		if a.S3 != nil && a.S3.HasKeys() {
			panic("a look into a bucket with keys is no pod's")
		}
	}
	safe := *l
	safe.Root.Password, safe.Access.Password = "", ""
	text, err := json.Marshal(safe)
	if err != nil {
		panic(err) // strings, numbers and booleans
	}
	return string(text)
}

// DecodeLook reads what Encode wrote. It refuses fields that it does not know.
func DecodeLook(text string) (*Look, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	l := &Look{}
	if err := decoder.Decode(l); err != nil {
		return nil, fmt.Errorf("decode %s: %w", LookVariable, err)
	}
	return l, nil
}

// maxFailureBytes bounds a failure in a termination message, which a kubelet cuts at 4096 bytes. Quoting may double it.
const maxFailureBytes = 1500

// maxUnreadBytes bounds Catalogue.Unread in the same way, beside catalogueBatch repositories.
const maxUnreadBytes = 250

// Encode returns what was seen as the termination message of a pod.
func (s Seen) Encode() []byte {
	if len(s.Failure) > maxFailureBytes {
		s.Failure = strings.ToValidUTF8(s.Failure[:maxFailureBytes], "") + "…"
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and booleans
	}
	return text
}

// DecodeSeen reads what Encode wrote.
func DecodeSeen(text string) (Seen, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var s Seen
	if err := decoder.Decode(&s); err != nil {
		return Seen{}, fmt.Errorf("decode what was seen: %w", err)
	}
	return s, nil
}
