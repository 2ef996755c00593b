"""Runs the law: one replica for each broker, publishes and their verdicts, proofs, table views."""
