"""The cluster as decisions see it: loads, brokers, bundles, constraints, policies. Values and functions."""
