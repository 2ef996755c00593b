"""The log of decisions, with everything that each was decided from, and the answers that follow from it."""
