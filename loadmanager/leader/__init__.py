"""The duties of the elected leader: orphans, deadlines, rebalancing rounds, plans, advice, splits, quarantine."""
