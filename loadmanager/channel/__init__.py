"""The channel's snapshots and trimming, its history and audit, administrators' operations, and moves to another log."""
