"""The cluster as decisions see it: loads, brokers, bundles, constraints and policies. Values and functions."""
