"""Certificate authorities for calls to the operator's servers."""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def tls_context() -> ssl.SSLContext:
    """httpx's own, made once a process: to read the authorities takes 20 ms, and a client without it does so
    for itself, a page of the fleet for each copy."""
    return httpx.create_ssl_context(trust_env=False)
