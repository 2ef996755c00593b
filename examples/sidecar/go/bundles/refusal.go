package bundles

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Refusal is an answer for a client whose key is not served here. Nothing was done.
type Refusal struct {
	Status      int
	ContentType string
	RetryAfter  string
	Cluster     string // of the broker that says so
	Body        []byte
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%d: %s", r.Status, r.Body)
}

// Write sends it.
func (r *Refusal) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", r.ContentType)
	if r.RetryAfter != "" {
		w.Header().Set("Retry-After", r.RetryAfter)
	}
	if r.Cluster != "" {
		w.Header().Set(clusterHeader, r.Cluster)
	}
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body)
}

// NotServing makes a 503 that sends the client to look the key up again.
func NotServing(why string) *Refusal {
	body, _ := json.Marshal(map[string]any{"type": "urn:loadmanager:not-serving", "title": why, "status": 503})
	return &Refusal{http.StatusServiceUnavailable, "application/problem+json", "1", "", body}
}

func refusalOf(p *problem) *Refusal {
	switch p.status {
	case http.StatusMisdirectedRequest, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusBadRequest:
		h := p.header
		return &Refusal{p.status, h.Get("Content-Type"), h.Get("Retry-After"), h.Get(clusterHeader), p.body}
	default:
		return NotServing(p.Error())
	}
}
