package bundles

import (
	"encoding/json"
	"io"
	"net/http"
)

const hookBytes = 1 << 20

// serveHook answers one hook of the sidecar.
func (m *Member) serveHook(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hookBytes))
	if err != nil {
		return
	}
	verifier := m.verifier.Load()
	if verifier == nil || verifier.Verify(body, r.Header) != nil {
		http.Error(w, "the signature is missing, wrong, or too old", http.StatusUnauthorized)
		return
	}
	var h hook
	if err := json.Unmarshal(body, &h); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	write(w, m.answer(r, h))
}

func (m *Member) answer(r *http.Request, h hook) answer {
	s := m.session.Load()
	if s == nil {
		// The sidecar may be faster with its first hook than with the answer that tells us our session: it tries again.
		return answer{http.StatusServiceUnavailable, "not attached"}
	}
	c := s.begin(h)
	if c == nil {
		return overtaken
	}
	select {
	case <-c.done:
		return c.answer
	case <-r.Context().Done(): // the sidecar has given up this try
		return answer{http.StatusServiceUnavailable, "still at work"}
	}
}

func write(w http.ResponseWriter, a answer) {
	switch body := a.body.(type) {
	case nil:
		w.WriteHeader(a.status)
	case string:
		http.Error(w, body, a.status)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.status)
		_ = json.NewEncoder(w).Encode(body)
	}
}
