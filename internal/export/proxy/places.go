package proxy

import "sync"

// places bounds what is done at once, altogether and for each namespace.
type places struct {
	total, perNamespace int

	mu          sync.Mutex
	taken       int
	byNamespace map[string]int
}

// take takes a place, which the caller releases once. It returns nil if there is none.
func (p *places) take(namespace string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= p.total || p.byNamespace[namespace] >= p.perNamespace {
		return nil
	}
	if p.byNamespace == nil {
		p.byNamespace = map[string]int{}
	}
	p.taken++
	p.byNamespace[namespace]++
	return func() { p.release(namespace) }
}

func (p *places) release(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	if p.byNamespace[namespace]--; p.byNamespace[namespace] == 0 {
		delete(p.byNamespace, namespace)
	}
}
