"""What can go wrong with an exchange, by what the server may have seen of it.

HttpClientError
├── Refused     no connection: nothing was sent
├── Broken      the connection ended, or what came is not HTTP
└── TimedOut    nothing came for too long
"""

from __future__ import annotations


class HttpClientError(Exception):
    """An exchange came to nothing, or to less than its answer."""


class Refused(HttpClientError):
    """No connection came about, in time or at all; the request has not been sent."""


class Broken(HttpClientError):
    """The connection ended before the answer did."""


class TimedOut(HttpClientError):
    """The server was silent for too long."""
