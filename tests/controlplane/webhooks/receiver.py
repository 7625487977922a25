"""`python -m tests.controlplane.webhooks.receiver <port> <file>`: somebody's server, with the library of
Standard Webhooks. It writes down what it verified, or why it did not, and answers what the path says."""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from standardwebhooks import Webhook, WebhookVerificationError


class Receiver(BaseHTTPRequestHandler):
    """POST /<status>; the secret is the environment's SECRET, read from a file at each request."""

    file: Path
    secret: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = int(self.path.strip("/"))
        try:
            event = Webhook(self.secret.read_text()).verify(body, dict(self.headers.items()))
            line = {"id": self.headers["webhook-id"], "event": event}
        except WebhookVerificationError as error:
            line, status = {"refused": str(error)}, 400
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.send_response(status)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    Receiver.file, Receiver.secret = Path(sys.argv[2]), Path(os.environ["SECRET_FILE"])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
