// Package httpserver serves HTTPS so that strangers cannot exhaust it: connections are bounded, and a client that the
// handler knows keeps its own however many strangers come; a client that sends its header slowly, or takes an answer
// slowly, is cut. Export server and export proxy stand on it.
package httpserver
