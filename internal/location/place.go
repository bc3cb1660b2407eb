package location

import (
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/varvebackup/varve/internal/datamove"
)

// Place is where the repositories of a location are. It holds secrets.
type Place struct {
	// S3 and Volume say what it is; one of them is set. S3 has no Prefix. Volume is what a pod must have at
	// datamove.StorageDirectory.
	S3     *datamove.S3Access
	Volume *corev1.VolumeSource
	// Prefix is the location's own, without slashes around it.
	Prefix string
	// ReadOnly: nothing may be written.
	ReadOnly bool
	// Audience is that of the token that a pod shows for S3.Role; "": the pod's environment has the role.
	Audience string
	// Lock is for repositories that are made there.
	Lock Lock
	// Ignored says which fields Varve does not follow, and why that is safe.
	Ignored []string
}

// Lock keeps the blobs of a repository from being deleted. The zero value locks nothing.
type Lock struct {
	// Mode is GOVERNANCE or COMPLIANCE.
	Mode string
	// Period is how long after it was written no blob can be deleted.
	Period time.Duration
}

// String returns the place without its keys.
func (p Place) String() string {
	switch {
	case p.S3 != nil:
		return "s3://" + path.Join(p.S3.Endpoint, p.S3.Bucket, p.Prefix)
	case p.Volume != nil && p.Volume.NFS != nil:
		return "nfs://" + p.Volume.NFS.Server + path.Join(p.Volume.NFS.Path, p.Prefix)
	case p.Volume != nil && p.Volume.PersistentVolumeClaim != nil:
		return "claim " + path.Join(p.Volume.PersistentVolumeClaim.ClaimName, p.Prefix)
	}
	return "no place"
}

// NeedsPod says whether only pods can use the place, because they mount it or are an account that has a role.
func (p Place) NeedsPod() bool { return p.S3 == nil || p.S3.Role != nil }

// RoleStorage is what pods must have to use a bucket by its role.
func (p Place) RoleStorage() datamove.Storage {
	return datamove.Storage{Identity: &datamove.Identity{Audience: p.Audience}}
}

// GoString does the same for %#v.
func (p Place) GoString() string { return p.String() }

// Access returns the access to the repository of a namespace, without a password.
func (p Place) Access(volumeNamespace string) datamove.Access {
	return p.access(datamove.RepositoryPrefix(p.Prefix, volumeNamespace))
}

// Root returns the access to the directory that has the repositories of all namespaces. No repository is there itself.
func (p Place) Root() datamove.Access {
	return p.access(path.Dir(path.Clean(datamove.RepositoryPrefix(p.Prefix, "x"))) + "/")
}

func (p Place) access(prefix string) datamove.Access {
	a := datamove.Access{Version: datamove.AccessVersion, ReadOnly: p.ReadOnly}
	if p.S3 == nil {
		a.Directory = path.Join(datamove.StorageDirectory, prefix)
		return a
	}
	bucket := *p.S3
	bucket.Prefix = prefix
	a.S3 = &bucket
	return a
}
