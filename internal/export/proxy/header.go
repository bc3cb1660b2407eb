package proxy

import "net/http"

// requestHeaders are those of a client that an export gets, and answerHeaders those of an export that a client gets.
// What an export says is its namespace's word: a cookie or a redirect of one would be the proxy's to a client.
var (
	requestHeaders = []string{"Accept", "If-Match", "If-None-Match", "If-Range", "Range", "User-Agent", tokenHeader}
	answerHeaders  = []string{"Accept-Ranges", "Allow", "Content-Length", "Content-Range", "Content-Type", "Etag", "Retry-After", "Www-Authenticate"}
)

// copyHeaders copies the headers with these names.
func copyHeaders(to, from http.Header, names []string) {
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			to[name] = values
		}
	}
}
