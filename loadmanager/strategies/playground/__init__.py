"""Strategies at play over workloads, in a modelled cluster without brokers: what they reach and cost."""
