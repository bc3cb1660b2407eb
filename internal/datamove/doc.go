// Package datamove is the contract between those who move volumes into repositories and back: the controllers, which
// drive DataUploads and DataDownloads and keep the repositories, and the mover pods, which move the data. It has the
// names of what they make, the ID of what was stored, the files that mover pods read, and the report that they leave.
//
// The package decides nothing and touches nothing. Whatever it writes into objects or files has a version or can be extended without
// one, because both sides may be of different versions of Varve.
package datamove
