"""The quarantine: bundles that crash every broker that acquires them. `evidence` is pure, `keeper` acts as leader."""
