package expose

import (
	"context"

	velerov2 "github.com/varvebackup/varve/api/velero/v2alpha1"
	"github.com/varvebackup/varve/internal/datamove"
)

// downloadExposer is what the exposers of DataDownloads have in common.
type downloadExposer interface {
	Expose(ctx context.Context, download *velerov2.DataDownload) (Exposure, error)
	Finish(ctx context.Context, download *velerov2.DataDownload) (Progress, error)
	Dispose(ctx context.Context, download *velerov2.DataDownload) (Progress, error)
}

// Downloads are the exposers of DataDownloads. Which one it is stands in dataMoverConfig, and never changes.
type Downloads struct {
	// Volumes makes volumes.
	Volumes downloadExposer
	// Images finds the sources of images.
	Images downloadExposer
}

func (d *Downloads) chooseExposer(download *velerov2.DataDownload) downloadExposer {
	switch config := download.Spec.DataMoverConfig; {
	case datamove.ReadsDefinition(config):
		return definitions{}
	case datamove.WritesImage(config):
		return d.Images
	}
	return d.Volumes
}

// Expose makes the next step of the exposer that the DataDownload chooses.
func (d *Downloads) Expose(ctx context.Context, download *velerov2.DataDownload) (Exposure, error) {
	config := download.Spec.DataMoverConfig
	switch read, write := config[datamove.ConfigRead], config[datamove.ConfigWrite]; {
	case read != "" && read != datamove.ReadDefinition:
		return Exposure{}, refuse("spec.dataMoverConfig: %s %.80q: must be %s, or absent",
			datamove.ConfigRead, read, datamove.ReadDefinition)
	case write != "" && write != datamove.WriteImage:
		return Exposure{}, refuse("spec.dataMoverConfig: %s %.80q: must be %s, or absent",
			datamove.ConfigWrite, write, datamove.WriteImage)
	case read != "" && write != "":
		return Exposure{}, refuse("spec.dataMoverConfig: %s and %s exclude each other: leave one out",
			datamove.ConfigRead, datamove.ConfigWrite)
	}
	return d.chooseExposer(download).Expose(ctx, download)
}

// Finish is that of the exposer that the DataDownload chooses.
func (d *Downloads) Finish(ctx context.Context, download *velerov2.DataDownload) (Progress, error) {
	return d.chooseExposer(download).Finish(ctx, download)
}

// Dispose is that of the exposer that the DataDownload chooses.
func (d *Downloads) Dispose(ctx context.Context, download *velerov2.DataDownload) (Progress, error) {
	return d.chooseExposer(download).Dispose(ctx, download)
}

// definitions exposes what a mover pod needs to read the definition of a machine: nothing.
type definitions struct{}

func (definitions) Expose(context.Context, *velerov2.DataDownload) (Exposure, error) {
	return Exposure{Volume: &Volume{}}, nil
}

func (definitions) Finish(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}

func (definitions) Dispose(context.Context, *velerov2.DataDownload) (Progress, error) {
	return Progress{Done: true}, nil
}
