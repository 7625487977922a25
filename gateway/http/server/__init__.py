"""An HTTP/1.1 server for one raw ASGI application, on the application's own event loop.

It is independent of the application. Ambiguous requests are refused; ADR 62 says why this server exists.
"""

from gateway.http.server.limits import Limits
from gateway.http.server.processes import bind, raise_file_limit, run_processes
from gateway.http.server.server import Server, StartFailed
from gateway.http.server.tls import server_context

__all__ = ["Limits", "Server", "StartFailed", "bind", "raise_file_limit", "run_processes", "server_context"]
