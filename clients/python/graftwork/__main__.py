"""`python -m graftwork`: the command line."""

from __future__ import annotations

from graftwork.cli import main

main()
