// Package advice says what an error of a repository's storage comes from, and what a user can do about it. It is the only place that
// knows: the command line, the status of objects and the reports of mover pods show what it says, each with a Voice of its own.
package advice
