"""An HTTP/1.1 client for one thing: a POST whose answer is read as it comes.

It knows no redirects, cookies, proxies or compression; the parser is llhttp's, by httptools.
"""

from gateway.http.client.client import CONNECT_SECONDS, HttpClient
from gateway.http.client.connection import Connection
from gateway.http.client.errors import Broken, HttpClientError, Refused, TimedOut

__all__ = ["CONNECT_SECONDS", "Broken", "Connection", "HttpClient", "HttpClientError", "Refused", "TimedOut"]
