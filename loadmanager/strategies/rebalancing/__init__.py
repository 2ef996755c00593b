"""Which bundles move, and where: our `plan`, and Pulsar's strategies. Pure."""
