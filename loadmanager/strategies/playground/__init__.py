"""Runs strategies on workloads in a modelled cluster without brokers: their results and costs."""
