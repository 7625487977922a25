"""An SMTP server on loopback that keeps what it is sent, for tests of mail that leaves another process."""

from __future__ import annotations

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage


@dataclass
class MailReceiver:
    """`messages`: (recipient, message) as they arrived. `refuses`: each recipient is answered 450.

    `answers`: to a recipient, by address. `is_silent`: connections are taken, and nothing is said.
    """

    port: int = 0
    refuses: bool = False
    is_silent: bool = False
    connections: int = 0
    answers: dict[str, str] = field(default_factory=dict)
    messages: list[tuple[str, EmailMessage]] = field(default_factory=list)


@contextmanager
def mail_receiver() -> Iterator[MailReceiver]:
    """Listens while the block runs."""
    receiver = MailReceiver()

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            receiver.connections += 1
            if receiver.is_silent:
                self.rfile.readline()
                return
            self._say("220 ready")
            recipient = ""
            while line := self.rfile.readline().decode().strip():
                match line.split(":")[0].upper().split():
                    case ["DATA"]:
                        self._say("354 go on")
                        lines = iter(self.rfile.readline, b".\r\n")
                        text = b"".join(item[1:] if item.startswith(b"..") else item for item in lines)
                        message = email.message_from_bytes(text, policy=email.policy.default)
                        receiver.messages.append((recipient, message))
                        self._say("250 kept")
                    case ["RCPT", "TO"]:
                        recipient = line.partition("<")[2].partition(">")[0]
                        usual = "450 not now" if receiver.refuses else "250 ok"
                        self._say(receiver.answers.get(recipient, usual))
                    case ["QUIT"]:
                        self._say("221 bye")
                        return
                    case _:
                        self._say("250 ok")

        def _say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        server.daemon_threads = True
        receiver.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield receiver
        server.shutdown()
