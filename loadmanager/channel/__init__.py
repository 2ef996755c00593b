"""Around the channel: snapshots and trimming, its history, requests of administrators, moves to another log."""
