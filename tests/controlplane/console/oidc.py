"""A real OpenID Connect provider as a process, for tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.conftest import free_port, stop
from tests.waiting import eventually


@contextmanager
def oidc_provider(folder: Path, *people: dict[str, object]) -> Iterator[str]:
    """Run an OIDC provider and yield its issuer URL; `people` are claims, each with a `sub`."""
    port = free_port()
    options = [option for claims in people for option in ("--user-claims", json.dumps(claims))]
    program = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options]
    with (folder / "oidc.log").open("wb") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(port), message=(folder / "oidc.log").read_text)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def authorize(url: str, *, sub: str) -> str:
    """Log in at the provider; return the path and query of the redirect back."""
    reply = httpx.post(url, data={"sub": sub}, trust_env=False, follow_redirects=False)
    assert reply.status_code == 302, reply.text
    return re.sub(r"^https?://[^/]+", "", reply.headers["Location"])


def _answers(port: int) -> bool:
    with suppress(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/.well-known/openid-configuration", trust_env=False)
        return True
    return False
