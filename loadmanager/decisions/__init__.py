"""The log of decisions with all their inputs, and the explanations that follow from it."""
