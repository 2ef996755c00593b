"""`loadmanager top`: brokers, bundles and moves on a whole screen, live, with keys that change them."""
