package bundles

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrAbandoned is the cause with which the context of a request ends when its bundle is abandoned.
var ErrAbandoned = errors.New("the bundle is not ours any more")

// gate admits requests to the bundles that a session serves, and counts them until they end.
type gate struct {
	mu        sync.Mutex
	served    map[string][]*holding // by namespace, by the lower bound
	deadlines map[int]deadline      // by partition
	shared    []string              // namespaces whose bundles are served without regard to deadlines
}

// deadline is a moment on both clocks: the monotonic one stops while a machine sleeps, the wall clock may be set.
type deadline struct{ monotonic, wall time.Time }

func newGate() *gate {
	return &gate{served: map[string][]*holding{}, deadlines: map[int]deadline{}}
}

// holding is a bundle that is served, or still has requests.
type holding struct {
	Claim
	ctx      context.Context // of its requests
	cancel   context.CancelCauseFunc
	gate     *gate
	requests int
	closed   bool
	idle     chan struct{} // closed when no request is there, nor will come
}

func (g *gate) open(ctx context.Context, claim Claim) {
	h := &holding{Claim: claim, gate: g, idle: make(chan struct{})}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	served := g.served[claim.Namespace]
	at, _ := slices.BinarySearchFunc(served, claim.Lo, byLo)
	g.served[claim.Namespace] = slices.Insert(served, at, h)
}

// close admits no more requests to a bundle. It returns nil if the bundle is not served.
func (g *gate) close(bundle string) *holding {
	g.mu.Lock()
	defer g.mu.Unlock()
	for namespace, served := range g.served {
		for at, h := range served {
			if h.Name != bundle {
				continue
			}
			g.served[namespace] = slices.Delete(served, at, at+1)
			h.closed = true
			h.endIfIdle()
			return h
		}
	}
	return nil
}

// grant takes the answer to a question about the lease, which was asked at the moment sent. It replaces earlier ones.
func (g *gate) grant(sent time.Time, valid map[int]int64, shared []string) {
	deadlines := map[int]deadline{}
	for partition, ms := range valid {
		until := sent.Add(time.Duration(ms) * time.Millisecond)
		deadlines[partition] = deadline{until, until.Round(0)}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadlines, g.shared = deadlines, shared
}

// enter counts a request for the key, and returns nil if its bundle may not be served now.
func (g *gate) enter(key Key) *holding {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.find(key)
	if h == nil {
		return nil
	}
	h.requests++
	if !g.mayServe(h) {
		h.requests--
		return nil
	}
	return h
}

func (g *gate) find(key Key) *holding {
	served := g.served[key.Namespace]
	at, exact := slices.BinarySearchFunc(served, key.Position, byLo)
	if !exact {
		at--
	}
	if at < 0 || key.Position >= served[at].Hi {
		return nil
	}
	return served[at]
}

func (g *gate) mayServe(h *holding) bool {
	if slices.Contains(g.shared, h.Namespace) {
		return true
	}
	now, until := time.Now(), g.deadlines[h.Partition]
	return now.Before(until.monotonic) && now.Round(0).Before(until.wall)
}

// drain waits until all requests have ended. It cancels them, at once or when the context ends.
func (h *holding) drain(ctx context.Context, gently bool) {
	if gently {
		select {
		case <-h.idle:
		case <-ctx.Done():
		}
	}
	h.cancel(ErrAbandoned)
	<-h.idle
}

// leave ends a request that entered.
func (h *holding) leave() {
	h.gate.mu.Lock()
	defer h.gate.mu.Unlock()
	h.requests--
	h.endIfIdle()
}

func (h *holding) endIfIdle() {
	if h.closed && h.requests == 0 {
		close(h.idle)
	}
}

func byLo(h *holding, position int64) int {
	return int(h.Lo - position)
}
