package datamove

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func uploadJob() Job {
	return Job{
		Version: JobVersion, Kind: Upload, Namespace: "velero", Name: "b1-x", UID: "8debd2ab-3755-4700-9509-044e0dca1dc6",
		VolumeMode: corev1.PersistentVolumeBlock, SourceNamespace: "app", SourceClaim: "data", SourceUID: "1", Labels: map[string]string{"b": "1", "a": "2"}, Parallel: 3,
	}
}

func tunnelJob() Job {
	j := uploadJob()
	j.VolumeMode, j.Tunnel = "", &TunnelSource{BackupUID: "b1", Volume: "root", Checkpoint: "daily-2", BaseCheckpoint: "daily-1", BaseUID: "b0"}
	return j
}

func endpointJob() Job {
	j := uploadJob()
	j.VolumeMode = ""
	j.Endpoint = &EndpointSource{
		Map: "https://x.app.svc/exports/root/map", Data: "https://x.app.svc/exports/root/data", KubeVirt: true, Volume: "root", BackupUID: "b1", Bytes: 512,
		Checkpoint: "daily-2", CheckpointUID: "t1", BaseCheckpoint: "daily-1", BaseUID: "t1",
	}
	return j
}

func exportJob() Job {
	j := uploadJob()
	j.VolumeMode, j.Definition = "", true
	j.Endpoint = &EndpointSource{
		Map: "https://x.app.svc/exports/data/map", Data: "https://x.app.svc/exports/data/data", Export: true,
		Volume: "data", BackupUID: "e1",
	}
	return j
}

func downloadJob() Job {
	return Job{
		Version: JobVersion, Kind: Download, Namespace: "velero", Name: "r1-x", UID: "8debd2ab-3755-4700-9509-044e0dca1dc7", VolumeMode: corev1.PersistentVolumeFilesystem,
		SnapshotID: SnapshotID{Form: Disk, Point: strings.Repeat("0a", 16), Namespace: "app"}.String(),
	}
}

func imageJob() Job {
	j := downloadJob()
	j.VolumeMode, j.Image = corev1.PersistentVolumeBlock, true
	return j
}

func snapshotJob() Job {
	j := uploadJob()
	j.VolumeMode = corev1.PersistentVolumeBlock
	j.Snapshot = &SnapshotSource{
		SnapshotMoment: SnapshotMoment{Driver: "csi.test", Volume: "v", Snapshot: "s", Taken: 1},
		Metadata:       &SnapshotMetadata{Address: "metadata.csi:6443", CA: []byte("PEM"), Audience: "a", Namespace: "varve", Name: "du-1"},
	}
	return j
}

func TestJob_survivesItsEncoding(t *testing.T) {
	t.Parallel()
	defined := tunnelJob()
	defined.Definition = true
	patient := downloadJob()
	patient.StoragePatience = &metav1.Duration{Duration: time.Hour}
	if got := []time.Duration{patient.WaitForStorage(), uploadJob().WaitForStorage()}; !cmp.Equal(got,
		[]time.Duration{time.Hour, 4 * time.Hour}) {
		t.Errorf("they wait for the storage for %v", got)
	}
	compared := downloadJob()
	compared.VolumeMode, compared.SkipEqual = corev1.PersistentVolumeBlock, true
	for _, j := range []Job{
		uploadJob(), downloadJob(), compared, imageJob(), patient, tunnelJob(), defined, endpointJob(), exportJob(),
		snapshotJob(),
	} {
		got, err := DecodeJob(j.Encode())
		if err != nil || !cmp.Equal(got, j) {
			t.Errorf("%v: %s", err, cmp.Diff(got, j))
		}
		if got.Encode() != j.Encode() {
			t.Error("equal jobs have different encodings")
		}
	}
	if got := []string{uploadJob().VolumePath(), downloadJob().VolumePath()}; !cmp.Equal(got, []string{VolumeDevice, VolumeDirectory}) {
		t.Errorf("volumes at %v", got)
	}
}

func TestDecodeJob_refuses(t *testing.T) {
	t.Parallel()
	edited := func(j Job, edit func(*Job)) string { edit(&j); return j.Encode() }
	for name, c := range map[string]struct{ text, says string }{
		"nothing":                    {"", "EOF"},
		"a later version":            {strings.Replace(uploadJob().Encode(), `"version":1`, `"version":2`, 1), "version 2, want 1"},
		"an unknown field":           {strings.Replace(uploadJob().Encode(), `"kind"`, `"surprise":1,"kind"`, 1), "surprise"},
		"no object":                  {edited(uploadJob(), func(j *Job) { j.UID = "" }), "no object"},
		"another kind":               {edited(uploadJob(), func(j *Job) { j.Kind = "DataMove" }), "DataMove"},
		"an upload without a source": {edited(uploadJob(), func(j *Job) { j.SourceClaim = "" }), "without a source"},
		"a tunnel beside a volume":   {edited(tunnelJob(), func(j *Job) { j.VolumeMode = corev1.PersistentVolumeBlock }), "beside another source"},
		"a tunnel without a backup":  {edited(tunnelJob(), func(j *Job) { j.Tunnel.BackupUID = "" }), "without a backup"},
		"a download from a tunnel":   {edited(downloadJob(), func(j *Job) { j.VolumeMode, j.Tunnel = "", tunnelJob().Tunnel }), "beside another source"},
		"a definition of a volume": {
			edited(uploadJob(), func(j *Job) { j.Definition = true }),
			"without a disk of it",
		},
		"an export with a checkpoint": {
			edited(exportJob(), func(j *Job) { j.Endpoint.Checkpoint, j.Endpoint.CheckpointUID = "daily-1", "b1" }),
			"an export with checkpoints",
		},
		"endpoints beside a tunnel":  {edited(endpointJob(), func(j *Job) { j.Tunnel = tunnelJob().Tunnel }), "beside another source"},
		"endpoints beside a volume":  {edited(endpointJob(), func(j *Job) { j.VolumeMode = corev1.PersistentVolumeBlock }), "beside another source"},
		"endpoints without a URL":    {edited(endpointJob(), func(j *Job) { j.Endpoint = &EndpointSource{Map: "https://x/", Volume: "v", BackupUID: "b"} }), "without a URL"},
		"endpoints without a backup": {edited(endpointJob(), func(j *Job) { j.Endpoint = &EndpointSource{Map: "m", Data: "d", Volume: "v"} }), "without a volume or a backup"},
		"a checkpoint of nobody's": {edited(endpointJob(), func(j *Job) {
			j.Endpoint = &EndpointSource{Map: "m", Data: "d", Volume: "v", BackupUID: "b", BaseCheckpoint: "c"}
		}), "not unique"},
		"a snapshot of files": {edited(snapshotJob(),
			func(j *Job) { j.VolumeMode = corev1.PersistentVolumeFilesystem }), "than a Block volume"},
		"a snapshot without a handle": {
			edited(snapshotJob(), func(j *Job) { j.Snapshot.Snapshot = "" }),
			"without a driver or a handle",
		},
		"a snapshot, and nobody to ask": {
			edited(snapshotJob(), func(j *Job) { j.Snapshot.Metadata = nil }),
			"without the reason",
		},
		"a snapshot, and both": {
			edited(snapshotJob(), func(j *Job) { j.Snapshot.NoMetadata = "none" }),
			"or with both",
		},
		"a service without an audience": {
			edited(snapshotJob(), func(j *Job) { j.Snapshot.Metadata.Audience = "" }),
			"incomplete metadata service",
		},
		"a service without an authority": {
			edited(snapshotJob(), func(j *Job) { j.Snapshot.Metadata.CA = nil }),
			"incomplete metadata service",
		},
		"a patience of less than nothing": {edited(uploadJob(),
			func(j *Job) { j.StoragePatience = &metav1.Duration{Duration: -1} }), "a storagePatience of -1ns"},
		"a comparison with files": {
			edited(downloadJob(), func(j *Job) { j.SkipEqual = true }),
			"than the Block volume of a download",
		},
		"a comparison for an upload": {
			edited(uploadJob(), func(j *Job) { j.SkipEqual = true }),
			"than the Block volume of a download",
		},
		"an image in a file system": {
			edited(imageJob(), func(j *Job) { j.VolumeMode = corev1.PersistentVolumeFilesystem }),
			"than a Block volume",
		},
		"an image that is uploaded": {edited(uploadJob(), func(j *Job) { j.Image = true }), "than a Block volume"},
		"a part of files": {
			edited(uploadJob(), func(j *Job) { j.VolumeMode, j.DiskBytes = corev1.PersistentVolumeFilesystem, 7 }),
			"a number of bytes",
		},
		"less than nothing of a disk": {edited(uploadJob(), func(j *Job) { j.DiskBytes = -1 }), "a number of bytes"},
		"an image without its checksum": {
			edited(storedImageJob(), func(j *Job) { j.DiskChecksum = "" }), "without their SHA-512",
		},
		"a checksum of a whole volume": {
			edited(storedImageJob(), func(j *Job) { j.DiskBytes = 0 }), "without their SHA-512",
		},
		"a checksum of another kind": {
			edited(storedImageJob(), func(j *Job) { j.DiskChecksum = "abcd" }), "without their SHA-512",
		},
		"a download without a snapshot": {
			edited(downloadJob(), func(j *Job) { j.SnapshotID = "" }),
			"without a snapshotID",
		},
	} {
		if _, err := DecodeJob(c.text); err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), JobVariable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeJob(f *testing.F) {
	f.Add(uploadJob().Encode())
	f.Add(downloadJob().Encode())
	f.Add(tunnelJob().Encode())
	f.Add(endpointJob().Encode())
	f.Add(snapshotJob().Encode())
	f.Add(storedImageJob().Encode())
	f.Fuzz(func(t *testing.T, text string) {
		j, err := DecodeJob(text)
		if err != nil {
			return
		}
		if again, err := DecodeJob(j.Encode()); err != nil || again.Encode() != j.Encode() {
			t.Errorf("decoded once more: %v", err)
		}
	})
}

// storedImageJob stores an image.
func storedImageJob() Job {
	j := uploadJob()
	j.VolumeMode, j.DiskBytes, j.DiskChecksum = corev1.PersistentVolumeBlock, 7, strings.Repeat("0a", 64)
	return j
}

func TestReadDiskChecksum(t *testing.T) {
	t.Parallel()
	sum := strings.Repeat("0a", 64)
	if got, err := ReadDiskChecksum(map[string]string{ConfigDiskChecksum: sum}); err != nil || got != sum {
		t.Errorf("%s, %v", got, err)
	}
	for _, text := range []string{"", "0a", strings.Repeat("0A", 64), strings.Repeat("0g", 64), sum + "0a"} {
		if got, err := ReadDiskChecksum(map[string]string{ConfigDiskChecksum: text}); err == nil || got != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestReadDiskBytes(t *testing.T) {
	t.Parallel()
	if got, err := ReadDiskBytes(map[string]string{ConfigDiskBytes: "1000001"}); err != nil || got != 1_000_001 {
		t.Errorf("%d, %v", got, err)
	}
	for _, text := range []string{"", "0", "-1", "1Gi", "99999999999999999999"} {
		if got, err := ReadDiskBytes(map[string]string{ConfigDiskBytes: text}); err == nil || got != 0 {
			t.Errorf("%q: %d", text, got)
		}
	}
}
