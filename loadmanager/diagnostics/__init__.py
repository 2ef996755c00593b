"""Whether a broker would run well here, and a support bundle of a cluster that runs. Changes nothing."""
