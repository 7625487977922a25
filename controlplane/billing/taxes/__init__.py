"""Tax treatments of tenants, and tax on invoices."""
