"""Container images for copies on SageMaker, and their environment variables."""

from __future__ import annotations
