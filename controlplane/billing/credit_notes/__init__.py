"""Credit notes: what is taken back of finalized invoices."""
