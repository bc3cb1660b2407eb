package advice

import (
	"strings"

	"github.com/varvebackup/varve/internal/errclass"
)

// Cause is what an error of a storage comes from.
type Cause string

// The causes.
const (
	// Full: the storage takes no more data.
	Full Cause = "Full"
	// Clock: the storage refuses requests whose time differs too much from its own.
	Clock Cause = "Clock"
	// NoBucket: there is no bucket of this name.
	NoBucket Cause = "NoBucket"
	// NoKeys: there are neither keys nor a role. RoleRefused and RoleSilent: a role gives none.
	NoKeys      Cause = "NoKeys"
	RoleRefused Cause = "RoleRefused"
	RoleSilent  Cause = "RoleSilent"
	// Permission and ReadOnly: the file system of a directory refuses it.
	Permission Cause = "Permission"
	ReadOnly   Cause = "ReadOnly"
	// Denied: the storage refuses the keys, or they do not allow enough.
	Denied Cause = "Denied"
	// Certificate: the server's certificate is not trusted.
	Certificate Cause = "Certificate"
	// Silent: the storage does not answer.
	Silent Cause = "Silent"
)

// Voice is what whoever shows an advice calls things.
type Voice struct {
	// Place is the storage. There is how the advice refers to it: "there" if the reader has just read its name.
	Place, There string
	// Machine is whose clock counts.
	Machine string
	// Keys are the keys of the storage, and KeysSource may say in another clause where they come from.
	Keys, KeysSource string
	// GiveKeys is how to give keys, in the imperative.
	GiveKeys string
	// Account is what a role has to trust.
	Account string
	// Bucket is where the name of the bucket is set.
	Bucket string
	// Authority is where to give the certificate of the server's authority, with its preposition.
	Authority string
	// Writer is who needs the permission to write to a directory, and SetReadOnly how to use one that stays read-only, in the imperative.
	Writer, SetReadOnly string
	// SetAddress may say in another clause how to change the address of the storage, and Retry that what does not answer is tried again.
	SetAddress, Retry string
	// StorageOnly says that every error is one of the storage. Otherwise one that may come from a disk as well is left alone.
	// Directory says that the storage is a directory.
	StorageOnly, Directory bool
}

// Advice is what there is to say about an error of a storage.
type Advice struct {
	Cause Cause
	// What says what is wrong, and Do what to do about it, in the imperative.
	What, Do string
	// Class is the class of errors with this cause: it decides the exit code.
	Class errclass.Class
}

// For returns what there is to say about an error, in the words of v. It is false for what is no error of a storage, or says nothing
// more than its own text.
func For(err error, v Voice) (Advice, bool) {
	for _, e := range table {
		if e.matches(err, v) {
			return Advice{
				Cause: e.cause, What: v.fillPlaceholders(e.what), Do: v.fillPlaceholders(e.do),
				Class: e.class,
			}, true
		}
	}
	return Advice{}, false
}

// fillPlaceholders puts the words of v into a text of the table.
func (v Voice) fillPlaceholders(text string) string {
	return strings.NewReplacer(
		"{place}", v.Place, "{there}", v.There, "{machine}", v.Machine, "{keys}", v.Keys, "{keys source}",
		v.KeysSource, "{give keys}", v.GiveKeys, "{account}", v.Account,
		"{bucket}", v.Bucket, "{authority}", v.Authority, "{writer}", v.Writer, "{set read-only}", v.SetReadOnly,
		"{set address}", v.SetAddress, "{retry}", v.Retry,
	).Replace(text)
}
