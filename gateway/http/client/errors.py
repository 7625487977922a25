"""Errors of an exchange, by how much of the request the server may have received.

HttpClientError
├── Refused     no connection: nothing was sent
├── Broken      the connection ended, or the answer is not HTTP
└── TimedOut    nothing came for too long
"""

from __future__ import annotations


class HttpClientError(Exception):
    """The exchange failed before its answer was complete."""


class Refused(HttpClientError):
    """The connection failed or took too long; the request has not been sent."""


class Broken(HttpClientError):
    """The connection ended before the answer did."""


class TimedOut(HttpClientError):
    """The server was silent for too long."""
