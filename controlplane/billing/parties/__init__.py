"""Dated details of the seller and of billed tenants, which documents copy."""
