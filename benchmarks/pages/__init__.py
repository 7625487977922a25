"""How long the server takes for each page, of a tenant of 10,000 adapters and of the operator's."""

from __future__ import annotations

from benchmarks.pages.measuring import run

__all__ = ["run"]
