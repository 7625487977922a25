"""Writes a checkpoint with one adapter merged into its weights."""

from optimizer.merging.job import merge

__all__ = ["merge"]
