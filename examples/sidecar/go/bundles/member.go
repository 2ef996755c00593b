package bundles

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const (
	askTimeout   = 2 * time.Second        // of attaching, and of a poll
	pollPause    = 50 * time.Millisecond  // after a poll without an answer
	leavePause   = 200 * time.Millisecond // after a DELETE without an answer
	arrivalLimit = 5 * time.Second        // for which a request waits for its bundle
	arrivalPause = 5 * time.Millisecond   // while the sidecar knows more than we do
)

// Member is this service as a member of the cluster.
type Member struct {
	host     Host
	urls     map[string]string
	log      *slog.Logger
	sidecar  *sidecar
	hooks    net.Listener
	verifier atomic.Pointer[webhooks.Webhook]
	session  atomic.Pointer[session]
	leaving  atomic.Bool
	stop     context.CancelFunc
	ctx      context.Context

	complaint string // what Run complained of last
}

// New makes a member of the cluster to which the sidecar at LOADMANAGER_SIDECAR belongs. urls tell clients where this
// service is, by protocol.
func New(host Host, urls map[string]string, log *slog.Logger) (*Member, error) {
	base, secretFile := os.Getenv("LOADMANAGER_SIDECAR"), os.Getenv("LOADMANAGER_SIDECAR_SECRET_FILE")
	if base == "" || secretFile == "" {
		return nil, errors.New("set LOADMANAGER_SIDECAR and LOADMANAGER_SIDECAR_SECRET_FILE")
	}
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &Member{host: host, urls: urls, log: log, sidecar: newSidecar(base, secretFile), hooks: hooks}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m, nil
}

// Run attaches, and attaches again whenever a session ends, until Leave is done. An error needs a change by a person.
func (m *Member) Run() error {
	defer m.stop()
	server := &http.Server{Handler: http.HandlerFunc(m.serveHook), ReadHeaderTimeout: askTimeout}
	go func() { _ = server.Serve(m.hooks) }()
	defer server.Close()
	for m.ctx.Err() == nil {
		s, err := m.attach()
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		m.log.Info("attached", "session", s.id, "broker", s.broker)
		m.session.Store(s)
		m.poll(s)
		m.session.Store(nil)
		s.end()
		m.log.Info("session ended", "session", s.id)
		if m.leaving.Load() {
			return nil
		}
	}
	return nil
}

// Broker is the name of our broker; "" while we are not attached.
func (m *Member) Broker() string {
	if s := m.session.Load(); s != nil {
		return s.broker
	}
	return ""
}

// attach tries once, and returns nil, after a pause, if it should be tried again.
func (m *Member) attach() (*session, error) {
	ctx, cancel := context.WithTimeout(m.ctx, askTimeout)
	defer cancel()
	verifier, err := m.sidecar.readSecret()
	if err != nil {
		return m.later(pollPause, err)
	}
	m.verifier.Store(verifier)
	answer, err := m.sidecar.attach(ctx, attachment{
		protocol, "http://" + m.hooks.Addr().String() + "/", m.urls, []string{"prepare", "load"},
	})
	var refused *problem
	switch {
	case err == nil:
		return newSession(answer, m.host, m.log), nil
	case !errors.As(err, &refused):
		return m.later(pollPause, err)
	case refused.status == http.StatusBadRequest || refused.status == http.StatusUnprocessableEntity:
		return nil, err
	default: // another session is still there, or a sidecar with another secret has just started
		return m.later(refused.pause(), err)
	}
}

func (m *Member) later(pause time.Duration, err error) (*session, error) {
	m.complain("cannot attach yet", err)
	sleep(m.ctx, pause)
	return nil, nil
}

// complain logs a failed attempt, but not that it fails again in the same way.
func (m *Member) complain(what string, err error) {
	if text := fmt.Sprint(what, err); text != m.complaint && m.ctx.Err() == nil {
		m.complaint = text
		m.log.Warn(what, "error", err)
	}
}

// poll asks for the lease until the session ends.
func (m *Member) poll(s *session) {
	state := ""
	for m.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(m.ctx, askTimeout)
		sent := time.Now() // what the answer allows counts from here
		answer, err := m.sidecar.lease(ctx, s.id)
		cancel()
		var refused *problem
		switch {
		case err == nil:
			m.complaint = ""
			s.obey(sent, answer)
			if answer.State != state {
				state = answer.State
				m.log.Info(state, "session", s.id, "broker", s.broker)
			}
		case errors.As(err, &refused) && (refused.status == http.StatusGone || refused.status == http.StatusUnauthorized):
			m.log.Warn("the sidecar ended the session", "status", refused.status)
			return
		case m.ctx.Err() == nil:
			m.complain("no lease", err)
			sleep(m.ctx, pollPause)
		}
	}
}

// Leave moves all bundles to other brokers, and returns when that is done: serve requests until then.
func (m *Member) Leave(ctx context.Context) error {
	defer m.stop()
	m.leaving.Store(true)
	for {
		s := m.session.Load()
		if s == nil {
			return nil
		}
		err := m.sidecar.leave(ctx, s.id)
		var refused *problem
		if err == nil || errors.As(err, &refused) && refused.status < http.StatusInternalServerError {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not all bundles were moved away: %w", err)
		}
		sleep(ctx, leavePause)
	}
}

// Admit serves a request for a key: it calls serve if the key's bundle is ours, or comes to us within seconds.
//
// cluster is the header Loadmanager-Cluster of the request.
//
// The context of serve ends when the bundle is abandoned: write nothing more. Otherwise the error is a *Refusal, which
// tells the client where to go, or says that the key is none.
func (m *Member) Admit(ctx context.Context, key, cluster string, serve func(context.Context, Claim, Key) error) error {
	parsed, err := ParseKey(key)
	if err != nil {
		return &Refusal{Status: http.StatusBadRequest, ContentType: "text/plain", Body: []byte(err.Error())}
	}
	limit := time.Now().Add(arrivalLimit)
	if cluster != "" && cluster != m.cluster() {
		if err := m.ask(ctx, key, cluster, arrivalLimit); err != nil {
			return err
		}
	}
	for attempt := 0; ; attempt++ {
		if h := m.enter(parsed); h != nil {
			defer h.leave()
			return h.serve(ctx, parsed, serve)
		}
		left := time.Until(limit)
		if left <= 0 || ctx.Err() != nil {
			return NotServing(key + " is on its way, but did not come in time")
		}
		if attempt > 0 {
			sleep(ctx, arrivalPause)
		}
		if err := m.ask(ctx, key, cluster, left); err != nil {
			return err
		}
	}
}

// cluster is ours, as the newest lease says it; "" while that is not known.
func (m *Member) cluster() string {
	s := m.session.Load()
	if s == nil {
		return ""
	}
	cluster, _ := s.cluster.Load().(string)
	return cluster
}

func (m *Member) enter(key Key) *holding {
	s := m.session.Load()
	if s == nil {
		return nil
	}
	return s.gate.enter(key)
}

func (h *holding) serve(ctx context.Context, key Key, serve func(context.Context, Claim, Key) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(ErrAbandoned) })()
	return serve(ctx, h.Claim, key)
}

// ask returns nil if the sidecar says that the key is ours.
func (m *Member) ask(ctx context.Context, key, cluster string, left time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, left+askTimeout)
	defer cancel()
	err := m.sidecar.claim(ctx, key, cluster, left)
	var refused *problem
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refused):
		return NotServing("the sidecar does not answer")
	default:
		return refusalOf(refused)
	}
}

func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}
