"""Prompts and answers that a tenant opted in to have kept: sealed for it, for some days, deleted at will."""
