package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"unicode/utf8"

	"counters/bundles"
)

const (
	maxBody = 1 << 16
	maxName = 2_000
)

// web is the HTTP interface:
//
//	POST /v1/counters {"topic": "demo/counters/apples", "id": "a-unique-request-id"} -> {"value", "broker", "token"}
//	GET  /v1/counters?topic=demo/counters/apples                                    -> {"value", "broker", "token"}
type web struct {
	counters *counters
	member   *bundles.Member
	log      *slog.Logger
}

func (w *web) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/counters", w.increment)
	mux.HandleFunc("GET /v1/counters", w.read)
	return mux
}

func (w *web) increment(out http.ResponseWriter, r *http.Request) {
	var asked struct{ Topic, ID string }
	err := json.NewDecoder(http.MaxBytesReader(out, r.Body, maxBody)).Decode(&asked)
	if err != nil || asked.ID == "" || !storable(asked.Topic+asked.ID) {
		http.Error(out, `send {"topic": …, "id": …}`, http.StatusBadRequest)
		return
	}
	w.serve(out, r, asked.Topic, func(ctx context.Context, claim bundles.Claim, key bundles.Key) (stored, error) {
		return w.counters.increment(ctx, claim, key, asked.ID, w.member.Broker())
	})
}

func (w *web) read(out http.ResponseWriter, r *http.Request) {
	topic := r.URL.Query().Get("topic")
	if !storable(topic) {
		http.Error(out, "give ?topic=", http.StatusBadRequest)
		return
	}
	w.serve(out, r, topic, func(_ context.Context, claim bundles.Claim, key bundles.Key) (stored, error) {
		return stored{w.counters.value(claim, key), w.member.Broker(), claim.Token}, nil
	})
}

// storable says whether PostgreSQL takes this text as part of a primary key.
func storable(text string) bool {
	return len(text) <= maxName && utf8.ValidString(text) && !strings.Contains(text, "\x00")
}

type work func(context.Context, bundles.Claim, bundles.Key) (stored, error)

// serve answers under the claim of the topic's bundle, or sends the client to its owner.
func (w *web) serve(out http.ResponseWriter, r *http.Request, topic string, do work) {
	var made stored
	var token string
	cluster := r.Header.Get("Loadmanager-Cluster")
	err := w.member.Admit(r.Context(), topic, cluster, func(ctx context.Context, claim bundles.Claim, key bundles.Key) (err error) {
		made, err = do(ctx, claim, key)
		token = claim.Token
		return err
	})
	if err != nil {
		w.refuse(out, topic, err)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	out.Header().Set("Fencing-Token", token)
	_ = json.NewEncoder(out).Encode(made)
}

func (w *web) refuse(out http.ResponseWriter, topic string, err error) {
	var refusal *bundles.Refusal
	if !errors.As(err, &refusal) {
		// Fenced out, abandoned, or the storage failed. A request that is repeated has its id: it still counts once.
		w.log.Warn("not served", "topic", topic, "error", err)
		refusal = bundles.NotServing(topic + " is not served here now")
	}
	refusal.Write(out)
}
