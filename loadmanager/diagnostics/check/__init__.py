"""Checks whether a broker with these settings would run well here. Changes nothing."""
