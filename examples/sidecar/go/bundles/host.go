package bundles

import "context"

// Host is what a service does when bundles come and go.
//
// Calls for one bundle come one after the other; those for different bundles come concurrently. The context ends when
// the call is overtaken or the session ends: return soon, and write nothing more.
type Host interface {
	// Prepare warms up for a bundle that will come; the present owner still serves it. An error cancels the move.
	Prepare(ctx context.Context, bundle Bundle) error

	// Acquire raises the token in the storage, then loads. An error declines the bundle, and must leave nothing behind.
	// handOff is what the former owner returned by Release, or nil.
	Acquire(ctx context.Context, claim Claim, handOff []byte) error

	// Release forgets a bundle that moves away; all its requests have ended. It may return up to 64 KiB for the next
	// owner. destination may be nil.
	Release(ctx context.Context, bundle string, destination *Destination) (handOff []byte, err error)

	// Abandon forgets a bundle, if it is there, and writes nothing. All its requests have ended.
	Abandon(ctx context.Context, bundle string)

	// Load tells the load of each bundle since the last call.
	Load(ctx context.Context) ([]Load, error)
}
