"""The PDF renderer has no access to the network or to files."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.billing.documents.pdfs import pdf

pytestmark = pytest.mark.usefixtures("weasyprint")


class _Recorder(http.server.BaseHTTPRequestHandler):
    requested: list[str] = []

    def do_GET(self) -> None:
        self.requested.append(self.path)
        self.send_error(404)


@pytest.fixture
def listener() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Recorder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_renderer_loads_no_url_and_no_file(listener: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    made = pdf(
        f'<link rel="stylesheet" href="{listener}/a.css"><img src="{listener}/b.png">'
        f'<img src="{secret.as_uri()}">'
        f"<style>@import url({listener}/c.css); p {{ background: url({listener}/d.png) }}</style><p>text</p>"
    )
    assert made.startswith(b"%PDF-")
    assert _Recorder.requested == []
