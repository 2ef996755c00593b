package main

import (
	"context"
	"encoding/json"
	"sync"
	"syscall"
	"time"

	"counters/bundles"
)

const maxHandOff = 64 * 1024

// counters keeps in memory the counters of the bundles that are ours.
type counters struct {
	ledger *ledger

	mu    sync.Mutex
	held  map[string]*held // by the bundle's name
	since time.Time        // of the load that was told last
	cpu   time.Duration
}

// held is a bundle in memory.
type held struct {
	values   map[string]int64 // by the key's full name
	requests int              // since the load was told last
}

func newCounters(l *ledger) *counters {
	return &counters{ledger: l, held: map[string]*held{}, since: time.Now(), cpu: cpuTime()}
}

// increment adds one to a counter of the claimed bundle.
func (c *counters) increment(ctx context.Context, claim bundles.Claim, key bundles.Key, id, broker string) (stored, error) {
	made, err := c.ledger.increment(ctx, claim, key, id, broker)
	if err != nil {
		return made, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.held[claim.Name]; h != nil {
		h.requests++
		h.values[key.FullName] = max(h.values[key.FullName], made.Value) // answers may overtake each other
	}
	return made, nil
}

// value reads a counter of the claimed bundle.
func (c *counters) value(claim bundles.Claim, key bundles.Key) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[claim.Name]
	if h == nil {
		return 0
	}
	h.requests++
	return h.values[key.FullName]
}

// Prepare sees that the storage answers: if not, the present owner keeps the bundle.
func (c *counters) Prepare(ctx context.Context, _ bundles.Bundle) error {
	return c.ledger.pool.Ping(ctx)
}

// Acquire raises the fence, then loads.
func (c *counters) Acquire(ctx context.Context, claim bundles.Claim, handOff []byte) error {
	var handed map[string]int64
	if json.Unmarshal(handOff, &handed) != nil {
		handed = nil // there is none, or it is another version's: read the storage
	}
	values, err := c.ledger.open(ctx, claim, handed)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[claim.Name] = &held{values: values}
	return nil
}

// Release hands the counters over, if they fit; they are all stored.
func (c *counters) Release(_ context.Context, bundle string, _ *bundles.Destination) ([]byte, error) {
	h := c.forget(bundle)
	if h == nil {
		return nil, nil
	}
	handOff, err := json.Marshal(h.values)
	if len(handOff) > maxHandOff {
		return nil, nil
	}
	return handOff, err
}

// Abandon forgets them.
func (c *counters) Abandon(_ context.Context, bundle string) {
	c.forget(bundle)
}

func (c *counters) forget(bundle string) *held {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.held[bundle]
	delete(c.held, bundle)
	return h
}

// Load shares the process's CPU time out by requests.
func (c *counters) Load(context.Context) ([]bundles.Load, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, cpu := time.Now(), cpuTime()
	seconds, used := max(now.Sub(c.since).Seconds(), 0.001), (cpu - c.cpu).Seconds()
	c.since, c.cpu = now, cpu
	total := 0
	for _, h := range c.held {
		total += h.requests
	}
	loads := make([]bundles.Load, 0, len(c.held))
	for name, h := range c.held {
		rate := float64(h.requests) / seconds
		loads = append(loads, bundles.Load{
			Bundle: name, Keys: len(h.values), InMessages: rate, OutMessages: rate, InBytes: 100 * rate, OutBytes: 100 * rate,
			CPUPercent: 100 * used / seconds * float64(h.requests) / float64(max(total, 1)),
		})
		h.requests = 0
	}
	return loads, nil
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
