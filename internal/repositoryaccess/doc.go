// Package repositoryaccess does what controllers and their Jobs need of repositories that a datamove.Access leads to:
// it tries a location, looks for repositories, makes one or tries the password on the one that is there, and checks
// that it is still the same one.
//
// What is there decides, never a wish: a repository is made only where none is, and one that was known and is gone is never made again.
// Every call ends with its context. Errors have the classes of errclass, Explain puts them into words, and neither holds a secret.
package repositoryaccess
