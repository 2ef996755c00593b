"""Acts on accepted records that name this broker: calls the host's hooks, and publishes the outcome."""
