package serve

import (
	"container/list"
	"context"
	"sync"
)

// block is a cached block, or one that is being fetched.
type block struct {
	number int64
	// ready is closed when data or err is there.
	ready chan struct{}
	data  []byte
	err   error
	// place is the block's in the order of use, nil while it is fetched.
	place *list.Element
}

// cache keeps the blocks that were used last, up to a number of bytes. Each block is fetched once, whoever waits for it.
type cache struct {
	fetch func(ctx context.Context, number int64) ([]byte, error)
	limit int64
	// slots has room for each fetch that is under way.
	slots chan struct{}

	mu     sync.Mutex
	bytes  int64
	blocks map[int64]*block
	used   *list.List // of *block, latest first
	// fetching counts the goroutines that fetch.
	fetching sync.WaitGroup
}

func newCache(limit, fetches int64, fetch func(context.Context, int64) ([]byte, error)) *cache {
	return &cache{fetch: fetch, limit: limit, slots: make(chan struct{}, fetches), blocks: map[int64]*block{}, used: list.New()}
}

// getBlock returns the content of a block. The fetch goes on when ctx ends, for whoever else waits; life ends it.
func (c *cache) getBlock(ctx, life context.Context, number int64) ([]byte, error) {
	b := c.beginFetch(life, number)
	select {
	case <-b.ready:
		return b.data, b.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// beginFetch returns the block, and begins to fetch it if nobody has.
func (c *cache) beginFetch(life context.Context, number int64) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.blocks[number]; ok {
		if b.place != nil {
			c.used.MoveToFront(b.place)
		}
		return b
	}
	b := &block{number: number, ready: make(chan struct{})}
	c.blocks[number] = b
	c.fetching.Go(func() {
		data, err := c.fetchInTurn(life, number)
		c.finishFetch(b, data, err)
	})
	return b
}

func (c *cache) fetchInTurn(ctx context.Context, number int64) ([]byte, error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.slots }()
	return c.fetch(ctx, number)
}

func (c *cache) finishFetch(b *block, data []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b.data, b.err = data, err
	close(b.ready)
	if err != nil {
		delete(c.blocks, b.number) // The next one tries again.
		return
	}
	b.place = c.used.PushFront(b)
	c.bytes += int64(len(data))
	for c.bytes > c.limit && c.used.Len() > 1 {
		last, _ := c.used.Remove(c.used.Back()).(*block)
		delete(c.blocks, last.number)
		c.bytes -= int64(len(last.data))
	}
}
