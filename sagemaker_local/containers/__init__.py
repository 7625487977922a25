"""AWS's image families as processes of this host: their container contract and their request form.

Each runs as `python -m sagemaker_local.containers`: it checks the container's environment and files as the
real image does at its start, ends with the reason where that would fail, and otherwise starts the bundled
worker and answers in the family's own form.
"""

from __future__ import annotations
