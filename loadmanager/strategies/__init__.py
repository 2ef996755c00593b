"""Where bundles go: placement, rebalancing, splits, and the playground that compares strategies. Pure."""
