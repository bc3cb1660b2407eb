package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"

	"github.com/varvebackup/varve/internal/errclass"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// CheckPassword checks that a password opens the repository at a location, and returns the repository's unique ID. It
// reads the format and no index: its memory and its time do not depend on what the repository holds, and it does not
// notice damage of anything but the format. Like ConnectInMemory it puts a lost format back from its copy, unless o
// says ReadOnly. Nothing is cached.
//
// The errors are those of OpenConnection: ErrPassword, errclass.NotFound if there is no repository, errclass.Conflict
// while its format is being upgraded, and errclass.Corrupt if the format is damaged.
func CheckPassword(ctx context.Context, at storage.Location, password string, o ConnectOptions) (id string, err error) {
	st, _, err := openForConnection(ctx, at, password, &ConnectOptions{ReadOnly: o.ReadOnly})
	if err != nil {
		return "", WrapOpenError(at.String(), err)
	}
	defer func() { err = errors.Join(err, st.Close(ctx)) }()
	blobs, err := storage.ReadFormat(ctx, st)
	if err != nil {
		return "", WrapOpenError(at.String(), err)
	}
	client := repo.ClientOptions{Hostname: o.Host, Username: o.User, ReadOnly: true}
	a := &Access{Name: at.String(), Password: password, client: client}
	absent := func(id blob.ID) bool { return blobs[id] == nil }
	c, err := OpenView(ctx, storage.NewView(unlisted{st}, absent, blobs), a, nil)
	if err != nil {
		return "", explainFormat(ctx, st, blobs, a, err)
	}
	return c.ID(), c.Close(ctx)
}

// explainFormat returns why a password does not open a format: that the format is damaged, if its copy shows that, and
// err otherwise.
func explainFormat(ctx context.Context, st blob.Reader, blobs map[blob.ID][]byte, a *Access, err error) error {
	saved, unread := ReadFormatCopy(ctx, st)
	if unread != nil {
		return err
	}
	damaged, problem := FindFormatDamage(ctx, blobs, saved, a.Password)
	switch {
	case problem != nil && errors.Is(err, ErrPassword):
		return a.wrapOpenError(problem)
	case problem != nil:
		return err
	}
	var all []error
	for id := range damaged {
		all = append(all, DamagedFormatBlob(id))
	}
	if len(all) == 0 {
		return err
	}
	return a.wrapOpenError(errors.Join(all...))
}

// DamagedFormatBlob returns the error, of class Corrupt, of a format blob that its copy can replace.
func DamagedFormatBlob(id blob.ID) error {
	return fmt.Errorf("%w: blob %s is damaged or missing; there is a copy", errclass.Corrupt, id)
}

// unlisted is a storage that lists nothing: kopia finds no index to load.
type unlisted struct{ blob.Storage }

func (unlisted) ListBlobs(context.Context, blob.ID, func(blob.Metadata) error) error { return nil }
