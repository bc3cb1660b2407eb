package datamove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// AccessKey is the key of a repository's Secret that has its Access, and the name of the file in AccessDirectory.
const AccessKey = "repository.json"

// AccessDirectory is where a mover pod has the Secret of its repository.
const AccessDirectory = "/run/varve/repository"

// StorageDirectory is where a pod has the claim or the NFS export of a location that is a directory.
const StorageDirectory = "/run/varve/storage"

// CacheDirectory is where a mover pod has an emptyDir, for the cache of its repository and the journal of a restore to a device. A pod
// without it works without both. CacheBytes bounds the data in the cache; beside it, the cache has 256 MiB of metadata, and the indexes.
const (
	CacheDirectory = "/run/varve/cache"
	CacheBytes     = 256 << 20
)

// AccessVersion is the version of Access that this package writes and reads.
const AccessVersion = 1

// Access is all that a mover pod needs to open a repository. It holds secrets: nothing may print it.
type Access struct {
	// Version is AccessVersion.
	Version int `json:"version"`
	// Password is the repository's.
	Password string `json:"password"`
	// UniqueID is the repository's, in hexadecimal; "" until it was made. Another repository in its place is refused.
	UniqueID string `json:"uniqueID,omitempty"`
	// ReadOnly: nothing may be written.
	ReadOnly bool `json:"readOnly,omitempty"`
	// S3 and Directory say where it is: one of them is set.
	S3        *S3Access `json:"s3,omitempty"`
	Directory string    `json:"directory,omitempty"` // absolute path in the pod, below StorageDirectory
}

// S3Access is a bucket, and the keys to it.
type S3Access struct {
	// Endpoint is host or host:port.
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	// Prefix begins the names of the repository's blobs.
	Prefix    string `json:"prefix"`
	Region    string `json:"region,omitempty"`
	PlainHTTP bool   `json:"plainHTTP,omitempty"`
	// RootCA is PEM, for an authority that the system does not know.
	RootCA       []byte `json:"rootCA,omitempty"`
	AccessKey    string `json:"accessKey,omitempty"`
	SecretKey    string `json:"secretKey,omitempty"`
	SessionToken string `json:"sessionToken,omitempty"`
	// Role says where a pod gets keys that live for an hour or so, in place of AccessKey and SecretKey.
	Role *RoleAccess `json:"role,omitempty"`
}

// RoleAccess is a role whose keys a pod gets from a security token service (STS), to which it shows a token of its account. It holds no
// secret.
type RoleAccess struct {
	// ARN is the role's name. "" is the role that the pod's environment has, as EKS sets it for an account.
	ARN string `json:"arn,omitempty"`
	// STS is the URL of the service.
	STS string `json:"sts"`
}

// String returns what users call the role.
func (r RoleAccess) String() string {
	if r.ARN == "" {
		return "the role of account " + ServiceAccount
	}
	return "role " + r.ARN
}

// String keeps secrets out of logs.
func (a Access) String() string { return "access to a repository" }

// Format does the same for every verb of package fmt, and LogValue for every handler of package slog.
func (a Access) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, a.String()) }

// LogValue implements slog.LogValuer.
func (a Access) LogValue() slog.Value { return slog.StringValue(a.String()) }

// HasKeys says whether there are keys, which are secrets.
func (s S3Access) HasKeys() bool {
	return s.AccessKey != "" || s.SecretKey != "" || s.SessionToken != ""
}

// String keeps secrets out of logs.
func (s S3Access) String() string { return "access to a bucket" }

// Format does the same for every verb of package fmt, and LogValue for every handler of package slog.
func (s S3Access) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements slog.LogValuer.
func (s S3Access) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Secrets returns what must appear in no log, error or report. S3's AccessKey is a name, and no secret.
func (a Access) Secrets() []string {
	secrets := []string{a.Password}
	if a.S3 != nil {
		secrets = append(secrets, a.S3.SecretKey, a.S3.SessionToken)
	}
	return slices.DeleteFunc(secrets, func(s string) bool { return s == "" })
}

// Encode returns the access as a mover pod reads it.
func (a Access) Encode() []byte {
	a.Version = AccessVersion
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings and bytes
	}
	return text
}

// DecodeAccess reads what Encode wrote. It refuses fields and versions that it does not know. Its errors hold no secret.
func DecodeAccess(text []byte) (Access, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var a Access
	if err := decoder.Decode(&a); err != nil {
		return Access{}, fmt.Errorf("decode %s: not the access to a repository, or of another version of Varve", AccessKey)
	}
	switch {
	case a.Version != AccessVersion:
		return Access{}, fmt.Errorf("decode %s: version %d, want %d", AccessKey, a.Version, AccessVersion)
	case a.Password == "":
		return Access{}, fmt.Errorf("decode %s: no password", AccessKey)
	case (a.S3 != nil) == (a.Directory != ""):
		return Access{}, errors.New("decode " + AccessKey + ": neither or both of s3 and directory")
	case a.S3 != nil && a.S3.Role != nil && a.S3.HasKeys():
		return Access{}, errors.New("decode " + AccessKey + ": both keys and role")
	case a.S3 != nil && a.S3.Role == nil && (a.S3.AccessKey == "" || a.S3.SecretKey == ""):
		// With them, kopia would ask the node for the keys of its role.
		return Access{}, errors.New("decode " + AccessKey + ": neither keys nor role")
	}
	return a, nil
}
