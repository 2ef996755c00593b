// Package fence lets PostgreSQL refuse the writes of former owners.
//
// The table has ranges of the hash space that do not overlap, each with the token of the owner that raised it. It is
// that of loadmanager.fencing in Python: services in both languages may share it.
package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"counters/bundles"
)

// ErrFenced is the error of an owner that has been replaced. It wrote nothing.
var ErrFenced = errors.New("fenced out")

// IdleTimeoutMS is for idle_in_transaction_session_timeout: an owner that stops within a transaction holds up its
// successor for so long at most.
const IdleTimeoutMS = "5000"

// Transaction is what Raise and Check need: a newer owner must see what the former one has just committed.
var Transaction = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

const (
	create = `CREATE TABLE IF NOT EXISTS loadmanager_fence (namespace TEXT NOT NULL, lo BIGINT NOT NULL,
		hi BIGINT NOT NULL, token TEXT NOT NULL, PRIMARY KEY (namespace, lo))`
	alone  = `SELECT pg_advisory_xact_lock(hashtextextended('loadmanager_fence ' || $1, 0))`
	stands = `SELECT 1 FROM loadmanager_fence WHERE namespace = $1 AND lo = $2 AND hi = $3 AND token = $4 FOR SHARE`

	overlapping = `SELECT lo, hi, token FROM loadmanager_fence WHERE namespace = $1 AND lo < $2 AND hi > $3
		AND lo >= COALESCE((SELECT MAX(lo) FROM loadmanager_fence WHERE namespace = $1 AND lo <= $3), 0)`
	remove = `DELETE FROM loadmanager_fence WHERE namespace = $1 AND lo = $2`
	insert = `INSERT INTO loadmanager_fence (namespace, lo, hi, token) VALUES ($1, $2, $3, $4)`

	at = `SELECT token FROM loadmanager_fence WHERE namespace = $1 AND lo <= $2 AND hi > $2 ORDER BY lo DESC LIMIT 1`
	// A newer owner that raises the fence waits until the transaction with this lock has ended.
	lockedAt = at + ` FOR SHARE`
)

// piece is a row of the table.
type piece struct {
	Lo, Hi int64
	Token  string
}

// Create creates the table, unless it exists.
func Create(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, alone, ""); err != nil { // two concurrent creations would fail
		return err
	}
	_, err := tx.Exec(ctx, create)
	return err
}

// Raise raises the fence of the claim's range to its token. Load the range's data in the same transaction.
func Raise(ctx context.Context, tx pgx.Tx, claim bundles.Claim) error {
	tag, err := tx.Exec(ctx, stands, claim.Namespace, claim.Lo, claim.Hi, claim.Token)
	if err != nil || tag.RowsAffected() > 0 {
		return err
	}
	if _, err := tx.Exec(ctx, alone, claim.Namespace); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, overlapping, claim.Namespace, claim.Hi, claim.Lo)
	if err != nil {
		return err
	}
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByPos[piece])
	if err != nil {
		return err
	}
	return replace(ctx, tx, claim, stored)
}

// replace cuts the claim's range out of those that are stored.
func replace(ctx context.Context, tx pgx.Tx, claim bundles.Claim, stored []piece) error {
	own := piece{claim.Lo, claim.Hi, claim.Token}
	if len(stored) == 1 && stored[0] == own {
		return nil
	}
	batch := &pgx.Batch{}
	batch.Queue(remove, claim.Namespace, claim.Lo)
	pieces := []piece{own}
	for _, old := range stored {
		if old.Token >= claim.Token {
			return fmt.Errorf("%w: %s has the token %s, which is not lower than %s", ErrFenced, claim.Name, old.Token, claim.Token)
		}
		batch.Queue(remove, claim.Namespace, old.Lo)
		if old.Lo < claim.Lo {
			pieces = append(pieces, piece{old.Lo, claim.Lo, old.Token})
		}
		if old.Hi > claim.Hi {
			pieces = append(pieces, piece{claim.Hi, old.Hi, old.Token})
		}
	}
	for _, p := range pieces {
		batch.Queue(insert, claim.Namespace, p.Lo, p.Hi, p.Token)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// Check checks that the fence at the position has the claim's token, and keeps it so until the transaction ends.
func Check(ctx context.Context, tx pgx.Tx, claim bundles.Claim, position int64) error {
	for {
		token, err := tokenAt(ctx, tx, lockedAt, claim.Namespace, position)
		if err != nil || token == claim.Token {
			return err
		}
		// The range may have been cut while we waited for the lock.
		token, err = tokenAt(ctx, tx, at, claim.Namespace, position)
		if err != nil {
			return err
		}
		if token != claim.Token {
			return fmt.Errorf("%w: %s has the token %q, not %s", ErrFenced, claim.Name, token, claim.Token)
		}
	}
}

// tokenAt returns "" if no fence was ever raised there.
func tokenAt(ctx context.Context, tx pgx.Tx, question, namespace string, position int64) (token string, err error) {
	err = tx.QueryRow(ctx, question, namespace, position).Scan(&token)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return token, err
}
