"""Which container image a copy on SageMaker runs, and what its environment says."""

from __future__ import annotations
