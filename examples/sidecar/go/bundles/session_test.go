package bundles

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"
)

// host tells what is called, and loads for as long as the test wants.
type host struct {
	calls   chan string
	loading chan struct{}
}

func (h host) Prepare(context.Context, Bundle) error { return nil }

func (h host) Acquire(ctx context.Context, claim Claim, _ []byte) error {
	h.calls <- "acquiring"
	select {
	case <-h.loading:
	case <-ctx.Done(): // a driver may return without an error all the same
	}
	h.calls <- "acquired " + claim.Token
	return nil
}

func (h host) Release(context.Context, string, *Destination) ([]byte, error) {
	h.calls <- "released"
	return []byte("all"), nil
}

func (h host) Abandon(context.Context, string) { h.calls <- "abandoned" }

func (h host) Load(context.Context) ([]Load, error) { return nil, nil }

var apples, _ = ParseKey("demo/counters/apples")

func begun(t *testing.T) (*session, host) {
	t.Helper()
	h := host{make(chan string, 100), make(chan struct{})}
	s := newSession(attached{"one", "us"}, h, slog.New(slog.NewTextHandler(io.Discard, nil)))
	s.obey(time.Now(), lease{ValidMS: map[int]int64{0: 60_000}})
	t.Cleanup(s.cancel)
	return s, h
}

func hookOf(kind string, sequence int64) hook {
	h := hook{Type: kind}
	h.Data.Session, h.Data.Sequence, h.Data.Token = "one", sequence, "t"
	h.Data.Bundle = Bundle{"demo/counters/0x00000000_0xffffffff", "demo/counters", 0, 1 << 32}
	return h
}

func status(c *call) int {
	<-c.done
	return c.answer.status
}

func acquired(t *testing.T) (*session, host, *holding) {
	t.Helper()
	s, h := begun(t)
	close(h.loading)
	if got := status(s.begin(hookOf("acquire", 1))); got != http.StatusNoContent {
		t.Fatalf("acquire was answered %d", got)
	}
	<-h.calls // acquiring
	<-h.calls // acquired
	request := s.gate.enter(apples)
	if request == nil {
		t.Fatal("an acquired bundle is not served")
	}
	return s, h, request
}

func TestReleaseWaitsForRequests(t *testing.T) {
	s, h, request := acquired(t)
	release := s.begin(hookOf("release", 2))
	if s.gate.enter(apples) != nil {
		t.Fatal("a request was admitted after the release came")
	}
	if s.begin(hookOf("release", 2)) != release {
		t.Fatal("a repeat does not wait for the first answer")
	}
	select {
	case <-h.calls:
		t.Fatal("the release did not wait for a request in progress")
	case <-time.After(50 * time.Millisecond):
	}
	request.leave()
	if got := status(release); got != http.StatusOK {
		t.Fatalf("release was answered %d", got)
	}
}

func TestAbandonEndsRequests(t *testing.T) {
	s, h, request := acquired(t)
	release := s.begin(hookOf("release", 2))
	abandon := s.begin(hookOf("abandon", 3))
	<-request.ctx.Done()
	if !errors.Is(context.Cause(request.ctx), ErrAbandoned) || len(h.calls) > 0 {
		t.Fatal("the host forgot the bundle before its requests had ended")
	}
	request.leave()
	if first, second := status(release), status(abandon); first != http.StatusConflict || second != http.StatusNoContent {
		t.Fatalf("release and abandon were answered %d and %d", first, second)
	}
	if call := <-h.calls; call != "abandoned" {
		t.Fatalf("the host was told %q", call)
	}
}

func TestOvertakenAcquireIsNotServed(t *testing.T) {
	s, h := begun(t)
	acquire := s.begin(hookOf("acquire", 1))
	<-h.calls // acquiring
	abandon := s.begin(hookOf("abandon", 2))
	if first, second := status(acquire), status(abandon); first != http.StatusConflict || second != http.StatusNoContent {
		t.Fatalf("acquire and abandon were answered %d and %d", first, second)
	}
	if s.gate.enter(apples) != nil {
		t.Fatal("the bundle is served")
	}
	for len(h.calls) > 1 {
		<-h.calls
	}
	if call := <-h.calls; call != "abandoned" {
		t.Fatalf("the host was told %q last", call)
	}
}

func TestEndForgetsAllAndTakesNoHook(t *testing.T) {
	s, h, request := acquired(t)
	go func() {
		<-request.ctx.Done()
		request.leave()
	}()
	s.end()
	if call := <-h.calls; call != "abandoned" || s.gate.enter(apples) != nil {
		t.Fatal("the bundle is still there")
	}
	if s.begin(hookOf("acquire", 9)) != nil {
		t.Fatal("a hook came after the end")
	}
}

func TestBothClocksCount(t *testing.T) {
	s, _, request := acquired(t)
	request.leave()
	now := time.Now()
	early, late := now.Add(-time.Second), now.Add(time.Hour)
	for _, until := range []deadline{{early, late.Round(0)}, {late, early.Round(0)}} {
		s.gate.deadlines = map[int]deadline{0: until}
		if s.gate.enter(apples) != nil {
			t.Fatalf("served beyond %v", until)
		}
	}
	s.gate.deadlines = map[int]deadline{0: {late, late.Round(0)}}
	if s.gate.enter(apples) == nil {
		t.Fatal("not served before both deadlines")
	}
	s.gate.served["demo/counters"][0].leave()
}

func TestKeysFallWhereTheBrokersSay(t *testing.T) {
	short, err := ParseKey("demo/counters/apples")
	if err != nil || short.FullName != "persistent://demo/counters/apples" || short.Position != 0x164553D3 {
		t.Fatalf("%+v, %v", short, err)
	}
	for _, wrong := range []string{"", "demo/counters", "a b/c/d", "demo/counters/../x"} {
		if _, err := ParseKey(wrong); err == nil {
			t.Errorf("%q is taken for a key", wrong)
		}
	}
}
