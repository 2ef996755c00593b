"""Evidence against bundles whose brokers crash, and the trials that lock a bundle up or clear it. Pure."""
