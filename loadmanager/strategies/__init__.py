"""Where bundles go: placement, rebalancing, splits, and the playground in which strategies play. Pure."""
