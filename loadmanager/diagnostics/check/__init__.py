"""Whether a broker with these settings would run well here: looks, and changes nothing."""
