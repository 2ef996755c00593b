"""What the elected leader does: orphans, deadlines, rounds of rebalancing, plans, advice, splits, quarantine."""
