"""A Hugging Face hub on loopback, as huggingface_hub calls it, with its CDN on another port.

    python hub_standin.py ROOT LOG

ROOT holds `<owner>/<name>/<revision>/files`, where each folder of a revision also holds its commit in
`.sha`. A repository whose owner is `private` wants the token TOKEN; one whose owner is `gated` is closed.
What is asked is written to LOG, a JSON object a line. Prints its port and the CDN's once it listens.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_TheTokenOfThisTest"
ROOT, LOG = (Path(argument) for argument in sys.argv[1:3]) if len(sys.argv) > 2 else (Path(), Path())


class Server(BaseHTTPRequestHandler):
    """Request log and answers, shared by the hub and the CDN."""

    protocol_version = "HTTP/1.1"

    server: ThreadingHTTPServer

    def note(self) -> None:
        line = {
            "port": self.server.server_port,
            "path": self.path,
            "token": self.headers.get("Authorization"),
        }
        with LOG.open("a") as log:
            log.write(json.dumps(line) + "\n")

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The file says it."""


class Hub(Server):
    def do_GET(self) -> None:
        self.note()
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/models/"):
            owner, name, _, revision = path.removeprefix("/api/models/").split("/", 3)
            if (folder := self.folder(owner, name, revision)) is not None:
                body = {
                    "id": f"{owner}/{name}",
                    "sha": (folder / ".sha").read_text(),
                    "tags": [],
                    "siblings": [],
                }
                self.answer(200, json.dumps(body).encode(), Content_Type="application/json")
            return
        owner, name, _, revision, file = path.lstrip("/").split("/", 4)
        folder = self.folder(owner, name, revision)
        if folder is None:
            return
        found = folder / file
        if not found.is_file():
            self.answer(
                404, b"Entry not found", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found"
            )
        elif file.endswith(".safetensors"):
            # Large files are redirected to the CDN by a signed URL.
            place = f"http://localhost:{cdn.server_address[1]}/{found.relative_to(ROOT)}?X-Amz-Signature=abc"
            self.answer(302, Location=place, X_Linked_Size=str(found.stat().st_size), ETag='"x"')
        else:
            self.answer(200, found.read_bytes(), X_Repo_Commit=(folder / ".sha").read_text(), ETag='"x"')

    def folder(self, owner: str, name: str, revision: str) -> Path | None:
        """The revision's folder; answers and gives None where there is none for the caller."""
        if owner == "busy":
            self.answer(503, b"Over capacity")
        elif owner == "gated":
            self.answer(403, b"gated", X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        elif owner == "private" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            # The hub does not tell a private repository from none.
            self.answer(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif not (ROOT / owner / name).is_dir():
            self.answer(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        else:
            for folder in (ROOT / owner / name).iterdir():
                if revision in (folder.name, (folder / ".sha").read_text()):
                    return folder
            self.answer(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        return None


class Cdn(Server):
    def do_GET(self) -> None:
        self.note()
        self.answer(200, (ROOT / unquote(urlsplit(self.path).path).lstrip("/")).read_bytes())


if __name__ == "__main__":
    hub, cdn = (ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (Hub, Cdn))
    threading.Thread(target=cdn.serve_forever, daemon=True).start()
    print(hub.server_address[1], cdn.server_address[1], flush=True)
    hub.serve_forever()
