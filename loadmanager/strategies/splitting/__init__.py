"""Which bundles are split or merged, and where they are cut. Pure."""
