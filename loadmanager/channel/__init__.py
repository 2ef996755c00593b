"""The channel's snapshots and trimming, its history, administrators' operations, and moves to another log."""
