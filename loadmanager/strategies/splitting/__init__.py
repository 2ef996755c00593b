"""Which bundles are split or merged, and where to cut them. Pure."""
