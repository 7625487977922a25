"""The ledger: an append-only journal, and its writers."""
