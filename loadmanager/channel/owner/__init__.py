"""The channel owner: a broker elected for a partition of the channel, which writes its snapshots and trims its log."""
