package moverpod

import (
	"context"
	"errors"
	"testing"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	repositoryobject "github.com/kopia/kopia/repo/object"
	"github.com/kopia/kopia/snapshot"

	"github.com/varvebackup/varve/internal/datamove"
	"github.com/varvebackup/varve/internal/repository"
	"github.com/varvebackup/varve/internal/repository/engine"
	"github.com/varvebackup/varve/internal/repository/storage"
)

// inside opens the repository below its facade until the test ends.
func (s *site) inside(t *testing.T) *engine.Connection {
	t.Helper()
	access, err := engine.ConnectInMemory(t.Context(), s.at, s.access.Password, engine.ConnectOptions{Host: "test", User: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := engine.OpenConnection(t.Context(), access, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return c
}

// damageRecord makes what a restore point is unreadable. Its manifest says nothing of that, as with those of earlier versions, and its
// directory has a bit flipped.
func (s *site) damageRecord(t *testing.T, id string) {
	t.Helper()
	c := s.inside(t)
	point, err := c.FindPoint(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	m := *point.Manifest
	m.ID, m.Description = "", ""
	err = c.Change(t.Context(), "test", func(ctx context.Context, w repo.DirectRepositoryWriter) error {
		_, err := snapshot.SaveSnapshot(ctx, w, &m)
		return errors.Join(err, engine.RemoveManifest(ctx, w, point.Manifest.ID))
	})
	if err != nil {
		t.Fatal(err)
	}
	s.flip(t, c, m.RootObjectID())
	if points, err := s.open(t).List(t.Context(), nil); err == nil {
		t.Fatalf("nothing is damaged: %v", points)
	}
}

// flip flips a bit of the first content of an object.
func (s *site) flip(t *testing.T, c *engine.Connection, id repositoryobject.ID) {
	t.Helper()
	for inner, ok := id.IndexObjectID(); ok; inner, ok = id.IndexObjectID() {
		id = inner
	}
	content, _, ok := id.ContentID()
	if !ok {
		t.Fatalf("%s is no content", id)
	}
	info, err := c.Reader().ContentInfo(t.Context(), content)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.at.Open(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	data, err := storage.ReadBlob(t.Context(), st, info.PackBlobID)
	if err != nil {
		t.Fatal(err)
	}
	data[info.PackOffset+info.PackedLength/2] ^= 1
	if err := errors.Join(st.PutBlob(t.Context(), info.PackBlobID, storage.Bytes(data), blob.PutOptions{}), st.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// What is damaged is no base. It keeps no volume from being uploaded, and no restore point that is whole from being the base.
func TestSnapshotUpload_isNotHeldUpByDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stored []string
		damage func(t *testing.T, s *csiStorage, points map[string]string)
		// asked is what the last upload asks the driver for, and reason why it is full.
		asked  string
		reason string
	}{
		"an older restore point": {[]string{"monday", "tuesday"}, func(t *testing.T, s *csiStorage, points map[string]string) {
			s.damageRecord(t, points["monday"])
		}, "tuesday", ""},
		"the latest restore point": {[]string{"monday", "tuesday"}, func(t *testing.T, s *csiStorage, points map[string]string) {
			s.damageRecord(t, points["tuesday"])
		}, "monday", ""},
		"the only restore point": {[]string{"tuesday"}, func(t *testing.T, s *csiStorage, points map[string]string) {
			s.damageRecord(t, points["tuesday"])
		}, "", string(repository.FullParentDamaged)},
		"the data of the base": {[]string{"monday", "tuesday"}, func(t *testing.T, s *csiStorage, points map[string]string) {
			p, err := s.open(t).Get(t.Context(), points["tuesday"])
			if err != nil {
				t.Fatal(err)
			}
			s.flip(t, s.inside(t), p.Disks[0].Object)
		}, "tuesday", string(repository.FullParentDamaged)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, points := newCSIStorage(t), map[string]string{}
			for i, handle := range c.stored {
				s.write(int64(7+i)*mib, noise(mib, uint64(i)))
				p := s.snapshotPod(t, handle)
				s.stores(t, p)
				id, err := datamove.PointID(p.Job.UID)
				if err != nil {
					t.Fatal(err)
				}
				points[handle] = id
			}
			c.damage(t, s, points)
			s.write(12*mib, noise(mib, 9))
			report := s.stores(t, s.snapshotPod(t, "wednesday"))
			if asked := s.asked(); report.FullReason != c.reason || asked[len(asked)-1] != c.asked {
				t.Errorf("%+v, asked for %q", report, asked)
			}
			// The next one has a base again.
			s.write(13*mib, noise(mib, 10))
			if report := s.stores(t, s.snapshotPod(t, "thursday")); report.FullReason != "" {
				t.Errorf("%+v", report)
			}
		})
	}
}
