"""How invoices are taxed."""
