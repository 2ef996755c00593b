"""What happened in the channel: a bundle's history, changes as they come, audits of all replicas. Reads only."""
