"""Which bundles move, and where to: our `plan`, and the strategies of Pulsar. Pure."""
