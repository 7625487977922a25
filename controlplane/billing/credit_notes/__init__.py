"""Credit notes on finalized invoices."""
