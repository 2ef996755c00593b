"""What happened in the channel: a bundle's history, a stream of changes, audits of all replicas. Reads only."""
