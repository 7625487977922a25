"""Adapters that gateways hold back: recorded, announced, and released by operators (ADR 89)."""
