package expose

import (
	"context"
	"errors"
	"strings"
	"testing"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

var errVolumes = errors.New("a volume is asked for")

type noVolumes struct{}

func (noVolumes) Expose(context.Context, *velerov2.DataDownload) (Exposure, error) {
	return Exposure{}, errVolumes
}

func (noVolumes) Finish(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{}, errVolumes
}

func (noVolumes) Dispose(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{}, errVolumes
}

// A DataDownload that reads a definition has no volume made, and one whose config is not understood is refused before
// anything is.
func TestDownloads_definition(t *testing.T) {
	t.Parallel()
	d := &Downloads{Volumes: noVolumes{}}
	reading := func(what string) *velerov2.DataDownload {
		o := &velerov2.DataDownload{}
		o.Spec.DataMoverConfig = map[string]string{datamove.ConfigRead: what}
		return o
	}
	o := reading(datamove.ReadDefinition)
	e, err := d.Expose(t.Context(), o)
	if err != nil || e.Volume == nil || e.Volume.Claim != "" {
		t.Errorf("%+v %v", e, err)
	}
	for name, step := range map[string]func(context.Context, *velerov2.DataDownload) (Progress, error){"finish": d.Finish, "dispose": d.Dispose} {
		if p, err := step(t.Context(), o); err != nil || !p.Done {
			t.Errorf("%s: %+v %v", name, p, err)
		}
	}
	if _, err := d.Expose(t.Context(), reading("everything")); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), `read "everything"`) {
		t.Errorf("%v", err)
	}
	for says, config := range map[string]map[string]string{
		`write "disk": must be image`: {datamove.ConfigWrite: "disk"},
		"exclude each other":          {datamove.ConfigWrite: datamove.WriteImage, datamove.ConfigRead: datamove.ReadDefinition},
	} {
		o := &velerov2.DataDownload{Spec: velerov2.DataDownloadSpec{DataMoverConfig: config}}
		if _, err := d.Expose(t.Context(), o); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: it does not say %q", err, says)
		}
	}
	if _, err := d.Expose(t.Context(), &velerov2.DataDownload{}); !errors.Is(err, errVolumes) {
		t.Errorf("%v", err)
	}
}
