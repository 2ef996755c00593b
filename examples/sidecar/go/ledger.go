package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"counters/bundles"
	"counters/fence"
)

const schema = `
CREATE TABLE IF NOT EXISTS counter (
	namespace TEXT, position BIGINT, topic TEXT, value BIGINT NOT NULL, PRIMARY KEY (namespace, position, topic));
CREATE TABLE IF NOT EXISTS increment (
	topic TEXT, request_id TEXT, value BIGINT NOT NULL, token TEXT NOT NULL, broker TEXT NOT NULL,
	PRIMARY KEY (topic, request_id));`

const (
	load = `SELECT topic, value FROM counter WHERE namespace = $1 AND position >= $2 AND position < $3`
	add  = `INSERT INTO counter VALUES ($1, $2, $3, 1)
		ON CONFLICT (namespace, position, topic) DO UPDATE SET value = counter.value + 1 RETURNING value`
	note = `INSERT INTO increment VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`
	find = `SELECT value, broker, token FROM increment WHERE topic = $1 AND request_id = $2`
)

// errRepeated rolls back an increment whose request id is stored already.
var errRepeated = errors.New("repeated")

// ledger is the counters' storage. An increment and its request id are one transaction, so each counts once.
type ledger struct{ pool *pgxpool.Pool }

// stored is an increment: its value, by which broker, under which token.
type stored struct {
	Value  int64  `json:"value"`
	Broker string `json:"broker"`
	Token  string `json:"token"`
}

func openLedger(ctx context.Context, url string) (*ledger, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fence.IdleTimeoutMS
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	l := &ledger{pool}
	return l, l.transaction(ctx, func(tx pgx.Tx) error {
		if err := fence.Create(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
}

func (l *ledger) transaction(ctx context.Context, work func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, l.pool, fence.Transaction, work)
}

// open raises the fence, then loads the counters unless the former owner has handed them over.
func (l *ledger) open(ctx context.Context, claim bundles.Claim, handed map[string]int64) (map[string]int64, error) {
	err := l.transaction(ctx, func(tx pgx.Tx) error {
		if err := fence.Raise(ctx, tx, claim); err != nil || handed != nil {
			return err
		}
		handed = map[string]int64{}
		rows, err := tx.Query(ctx, load, claim.Namespace, claim.Lo, claim.Hi)
		if err != nil {
			return err
		}
		var topic string
		var value int64
		_, err = pgx.ForEachRow(rows, []any{&topic, &value}, func() error {
			handed[topic] = value
			return nil
		})
		return err
	})
	return handed, err
}

// increment adds one; a repeated request id gets its first answer.
func (l *ledger) increment(ctx context.Context, claim bundles.Claim, key bundles.Key, id, broker string) (stored, error) {
	made := stored{Broker: broker, Token: claim.Token}
	err := l.transaction(ctx, func(tx pgx.Tx) error {
		if err := fence.Check(ctx, tx, claim, key.Position); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, add, key.Namespace, key.Position, key.FullName).Scan(&made.Value); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, note, key.FullName, id, made.Value, made.Token, made.Broker)
		if err == nil && tag.RowsAffected() == 0 {
			return errRepeated
		}
		return err
	})
	if errors.Is(err, errRepeated) {
		err = l.pool.QueryRow(ctx, find, key.FullName, id).Scan(&made.Value, &made.Broker, &made.Token)
	}
	return made, err
}
