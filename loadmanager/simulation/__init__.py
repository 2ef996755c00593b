"""Whole clusters in virtual time, with every fault, and the invariants that must hold all along."""
