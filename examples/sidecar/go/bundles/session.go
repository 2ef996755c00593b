package bundles

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// session is one attachment to the sidecar. What it holds ends with it.
type session struct {
	id     string
	broker string
	host   Host
	log    *slog.Logger
	gate   *gate

	cluster atomic.Value // string: of the newest lease

	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	calls map[string]*call // the newest by bundle
}

// call is a hook from its first try on. Repeats wait for the same answer.
type call struct {
	hook   hook
	cancel context.CancelFunc
	done   chan struct{} // closed once there is an answer
	answer answer
}

type hook struct {
	Type string `json:"type"`
	Data struct {
		Claim
		Session  string       `json:"session"`
		Sequence int64        `json:"sequence"`
		HandOff  []byte       `json:"hand_off"`
		To       *Destination `json:"to"`
	} `json:"data"`
}

type answer struct {
	status int
	body   any
}

func newSession(a attached, host Host, log *slog.Logger) *session {
	s := &session{id: a.Session, broker: a.Broker, host: host, log: log, gate: newGate(), calls: map[string]*call{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// begin starts the work of a hook, or finds that of its first try. It returns nil for a hook that came too late.
//
// When it returns, the bundle of a release or abandon is not served any more.
func (s *session) begin(h hook) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.calls[h.Data.Name]
	if h.Data.Session != s.id || s.ctx.Err() != nil || before != nil && h.Data.Sequence < before.hook.Data.Sequence {
		return nil
	}
	if before != nil && h.Data.Sequence == before.hook.Data.Sequence {
		return before
	}
	var closed *holding
	switch h.Type {
	case "acquire", "release", "abandon":
		closed = s.gate.close(h.Data.Name)
	}
	if before != nil {
		before.cancel()
	}
	next := &call{hook: h, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(s.ctx)
	next.cancel = cancel
	s.calls[h.Data.Name] = next
	go s.run(ctx, next, before, closed)
	return next
}

// run does the work of a hook once the one before it, of the same bundle, has ended.
func (s *session) run(ctx context.Context, c, before *call, closed *holding) {
	defer close(c.done)
	if before != nil {
		<-before.done
		before.cancel()
	}
	if closed != nil {
		closed.drain(ctx, c.hook.Type == "release")
	}
	if ctx.Err() != nil {
		c.answer = overtaken
		return
	}
	begun := time.Now()
	c.answer = s.act(ctx, c)
	if c.hook.Type != "load" {
		s.log.Info(c.hook.Type, "bundle", c.hook.Data.Name, "sequence", c.hook.Data.Sequence,
			"token", c.hook.Data.Token, "status", c.answer.status, "took", time.Since(begun))
	}
}

func (s *session) act(ctx context.Context, c *call) answer {
	data := c.hook.Data
	switch c.hook.Type {
	case "prepare":
		return told(s.host.Prepare(ctx, data.Bundle))
	case "acquire":
		return s.acquire(ctx, c)
	case "release":
		handOff, err := s.host.Release(ctx, data.Name, data.To)
		if err != nil {
			return failed(err)
		}
		return answer{http.StatusOK, map[string][]byte{"hand_off": handOff}}
	case "abandon":
		s.host.Abandon(ctx, data.Name)
		return answer{status: http.StatusNoContent}
	case "load":
		loads, err := s.host.Load(ctx)
		if err != nil {
			return failed(err)
		}
		return answer{http.StatusOK, map[string]any{"loads": append([]Load{}, loads...)}}
	default:
		return answer{http.StatusNotImplemented, nil}
	}
}

// acquire serves the bundle once it is loaded, unless something newer has come for it meanwhile.
func (s *session) acquire(ctx context.Context, c *call) answer {
	claim := c.hook.Data.Claim
	if err := s.host.Acquire(ctx, claim, c.hook.Data.HandOff); err != nil {
		return failed(err)
	}
	s.mu.Lock()
	newest := s.calls[claim.Name] == c && s.ctx.Err() == nil
	if newest {
		s.gate.open(s.ctx, claim)
	}
	s.mu.Unlock()
	if !newest {
		s.host.Abandon(ctx, claim.Name)
		return overtaken
	}
	return answer{status: http.StatusNoContent}
}

// obey takes a lease that was asked for at the moment sent. What it abandons is not served under its deadlines.
func (s *session) obey(sent time.Time, l lease) {
	for _, order := range l.Abandon {
		h := hook{Type: "abandon"}
		h.Data.Name, h.Data.Session, h.Data.Sequence = order.Bundle, s.id, order.Sequence
		s.begin(h)
	}
	s.cluster.Store(l.Cluster)
	s.gate.grant(sent, l.ValidMS, l.Shared)
}

// end forgets all bundles. It returns when no request and no hook of this session is at work any more.
func (s *session) end() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock() // no call is added from now on
	for name, c := range s.calls {
		closed := s.gate.close(name)
		<-c.done
		if closed != nil {
			closed.drain(s.ctx, false)
		}
		if name != "" {
			s.host.Abandon(s.ctx, name)
		}
	}
}

var overtaken = answer{http.StatusConflict, "another hook for this bundle, or another session, is newer"}

func told(err error) answer {
	if err != nil {
		return failed(err)
	}
	return answer{status: http.StatusNoContent}
}

func failed(err error) answer {
	return answer{http.StatusUnprocessableEntity, err.Error()}
}
