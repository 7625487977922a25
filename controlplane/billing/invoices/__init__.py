"""Invoices: from a draft that follows the books to a file."""
