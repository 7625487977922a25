"""An HTTP/1.1 client for requests whose answers are streamed.

It supports no redirects, cookies, proxies or compression; the parser is llhttp, from httptools.
"""

from gateway.http.client.client import CONNECT_SECONDS, HttpClient
from gateway.http.client.connection import Connection
from gateway.http.client.errors import Broken, HttpClientError, Refused, TimedOut

__all__ = ["CONNECT_SECONDS", "Broken", "Connection", "HttpClient", "HttpClientError", "Refused", "TimedOut"]
