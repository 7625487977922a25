"""Invoices: drafts that follow the ledger, finalized invoices, and their files."""
