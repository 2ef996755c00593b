"""Acts on accepted records that name this broker: calls the host, and publishes what became of it."""
