"""Checks whether a broker would run well here, and collects support bundles of running clusters. Changes nothing."""
