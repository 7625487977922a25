"""Prompts and answers that a tenant opted in to store: sealed for it, for some days, deleted on request."""
