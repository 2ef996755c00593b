package main

import (
	"context"
	"errors"
	"os"
	"testing"

	"counters/bundles"
	"counters/fence"
)

var apples, _ = bundles.ParseKey("demo/counters/apples") // at 0x164553d3

func claimOf(lo, hi int64, token string) bundles.Claim {
	return bundles.Claim{Bundle: bundles.Bundle{Name: "b", Namespace: "demo/counters", Lo: lo, Hi: hi}, Token: token}
}

func opened(t *testing.T) *ledger {
	t.Helper()
	url := os.Getenv("COUNTERS_STORE")
	if url == "" {
		t.Skip("COUNTERS_STORE names no PostgreSQL")
	}
	l, err := openLedger(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = l.pool.Exec(context.Background(), "DROP TABLE counter, increment, loadmanager_fence")
		l.pool.Close()
	})
	return l
}

func raised(t *testing.T, l *ledger, claim bundles.Claim) map[string]int64 {
	t.Helper()
	values, err := l.open(t.Context(), claim, nil)
	if err != nil {
		t.Fatal(err)
	}
	return values
}

func TestAFormerOwnerWritesNothing(t *testing.T) {
	l := opened(t)
	former, half, newer := claimOf(0, 1<<32, "1"), claimOf(0, 1<<31, "2"), claimOf(0, 1<<30, "3")
	if _, err := l.increment(t.Context(), former, apples, "r1", "us"); !errors.Is(err, fence.ErrFenced) {
		t.Fatalf("a write before the fence was raised: %v", err)
	}
	raised(t, l, former)
	for range 2 { // a repeated request counts once
		if made, err := l.increment(t.Context(), former, apples, "r1", "us"); err != nil || made != (stored{1, "us", "1"}) {
			t.Fatalf("%+v, %v", made, err)
		}
	}
	for _, owner := range []bundles.Claim{half, newer} { // as after splits
		if values := raised(t, l, owner); values[apples.FullName] != 1 {
			t.Fatalf("the new owner has loaded %v", values)
		}
		if _, err := l.increment(t.Context(), former, apples, "r2", "us"); !errors.Is(err, fence.ErrFenced) {
			t.Fatalf("a former owner has written: %v", err)
		}
		if _, err := l.open(t.Context(), former, nil); !errors.Is(err, fence.ErrFenced) {
			t.Fatalf("a former owner has raised the fence again: %v", err)
		}
	}
	beside := bundles.Key{Namespace: "demo/counters", FullName: "persistent://demo/counters/beside", Position: 1 << 31}
	if _, err := l.increment(t.Context(), former, beside, "r3", "us"); err != nil {
		t.Fatalf("what is left of the former owner's range is fenced as well: %v", err)
	}
	if made, err := l.increment(t.Context(), newer, apples, "r4", "me"); err != nil || made != (stored{2, "me", "3"}) {
		t.Fatalf("%+v, %v", made, err)
	}
}
