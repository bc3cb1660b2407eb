package server

import "time"

// Hooks are called for metrics, from many goroutines at once. Volume and endpoint are one of a few words each, whatever
// clients ask for; they are empty if a request came to none.
type Hooks struct {
	// Sent is called for bytes of a volume's content on their way to a client, while a request is served.
	Sent func(volume, endpoint string, bytes int64)
	// Answered is called at the end of each request with the token. volume is empty for a stream of several volumes.
	// status is 0 if the request ended before it had one.
	Answered func(volume, endpoint string, status int, took time.Duration)
	// TokenRefused is called for each request that is refused for its token: "missing", "wrong", or "unreadable" if the
	// server has none.
	TokenRefused func(reason string)
	// Limited is called for each request that is refused because too many are being served.
	Limited func()
}

func (h Hooks) withDefaults() Hooks {
	if h.Sent == nil {
		h.Sent = func(string, string, int64) {}
	}
	if h.Answered == nil {
		h.Answered = func(string, string, int, time.Duration) {}
	}
	if h.TokenRefused == nil {
		h.TokenRefused = func(string) {}
	}
	if h.Limited == nil {
		h.Limited = func() {}
	}
	return h
}
