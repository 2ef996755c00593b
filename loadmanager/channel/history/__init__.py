"""What happened in the channel: a bundle's history and a stream of changes. Reads only."""
