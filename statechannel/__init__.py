"""The state channel: who owns what. `law` decides, `runtime` reads and publishes, `adapters` carry it."""
