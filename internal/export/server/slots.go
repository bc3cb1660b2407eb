package server

import "sync"

// slots bounds what is served at once. A request has one. A stream has one for each volume that it reads at a time, so
// that memory for chunks is bounded by the slots, however many volumes and streams there are.
type slots struct {
	mu   sync.Mutex
	free int
}

// take takes up to n slots and returns how many.
func (s *slots) take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(0, min(n, s.free))
	s.free -= n
	return n
}

// release gives back what take returned.
func (s *slots) release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n
}

// taken returns how many of all slots are taken.
func (s *slots) taken(all int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return all - s.free
}
