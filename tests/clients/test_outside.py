"""Clients that people use, each in its own environment, through the gateway to a real worker.

`make clients` installs them below var/clients; GRAFTWORK_TEST_CLIENTS names another such folder. Where they
are not, these tests are skipped: the official client is held by the tests beside this file in any case.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.clients.conftest import SLOW_SECONDS, Platform
from tests.clients.outside.requests_and_results import ACME, CITY, SLOW, TINY, WRONG
from tests.clients.relay import Relay, relayed
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

CLIENTS = Path(os.environ.get("GRAFTWORK_TEST_CLIENTS", ROOT / "var" / "clients"))
SKIP = f"no outside clients in {CLIENTS}: run `make clients`"


@pytest.fixture
def relay(platform: Platform) -> Iterator[Relay]:
    with relayed(platform.gateway.port) as relay:
        yield relay
        for last in relay.times(SLOW)[-1:]:
            # The next client finds the limit of the key that may send one request in so long whole again.
            time.sleep(max(0.0, last + SLOW_SECONDS - time.monotonic()))


def run(*command: str | Path) -> str:
    # No client may reach for anything but this machine, nor for a key of the user's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def program(client: str, name: str = "python") -> Path:
    """A program of a client's own environment."""
    path = CLIENTS / client / "bin" / name
    if not path.exists():
        pytest.skip(SKIP)
    return path


def python(client: str, module: str, relay: Relay) -> dict[str, Any]:
    """Run a program of `outside` and return its report."""
    told = run(program(client), "-m", f"tests.clients.outside.{module}", relay.url)
    seen: dict[str, Any] = json.loads(told.splitlines()[-1])
    return seen


def check_answers(seen: dict[str, Any]) -> None:
    assert seen["streamed"] == seen["text"] == seen["response"]
    assert seen["streamed_usage"] == [seen["usage"]]
    assert seen["embedded"] == [72] * 3


def check_refusals(seen: dict[str, Any], relay: Relay) -> None:
    """A bad request is sent once. A rate-limited one waits for `retry-after` where a retry can help."""
    statuses = {"bad": 400, "unknown": 404, "stranger": 401, "refused": 429, "too_large": 429}
    assert {name: seen[name]["status"] for name in statuses if name in seen} == {
        name: status for name, status in statuses.items() if name in seen
    }
    assert "temperature must be a number from 0 to 2" in seen["bad"]["text"]
    assert len(relay.times(WRONG)) == 1
    assert len(relay.times(TINY)) == 1, "x-should-retry: false is heeded"
    times = relay.times(SLOW)
    assert len(times) >= 4, "one that is served, one refused, and one that is refused and tried again"
    assert times[-1] - times[0] >= SLOW_SECONDS * 0.9
    assert len(times) <= 7, "not in a hurry: retry-after was waited for"


def test_langchain_openai(relay: Relay) -> None:
    seen = python("langchain-openai", "use_langchain", relay)
    check_answers(seen)
    check_refusals(seen, relay)
    jsonschema.validate(seen["arguments"], CITY)
    assert [set(verdict) for verdict in seen["structured"]] == [{"answer", "sure"}] * 2
    assert seen["retried"] == 20


def test_litellm(relay: Relay) -> None:
    seen = python("litellm", "use_litellm", relay)
    check_answers(seen)
    check_refusals(seen, relay)
    jsonschema.validate(seen["arguments"], CITY)
    jsonschema.validate(seen["structured"], CITY)
    assert seen["retried"] == 20
    assert seen["stranger"]["kind"] == "AuthenticationError", "litellm tells it by OpenAI's words"


def test_instructor(relay: Relay) -> None:
    seen = python("instructor", "use_instructor", relay)
    check_refusals(seen, relay)
    assert len(seen["whole"]) == 4
    for verdict in (*seen["whole"].values(), seen["growing"], seen["retried"]):
        assert set(verdict) == {"answer", "sure"}


def test_openai_for_node(relay: Relay) -> None:
    node, module = shutil.which("node"), CLIENTS / "node_modules" / "openai" / "index.mjs"
    if node is None or not module.exists():
        pytest.skip(SKIP)
    seen = json.loads(run(node, Path(__file__).with_name("outside") / "use_openai.mjs", relay.url, module))
    check_answers(seen)
    check_refusals(seen, relay)
    jsonschema.validate(json.loads(seen["arguments"]), CITY)
    jsonschema.validate(json.loads(seen["structured"]), CITY)
    assert seen["last_event"] == "response.incomplete"
    assert seen["unknown"]["code"] == "model_not_found"
    assert seen["retried"] == 20


@pytest.mark.parametrize("form", ["openai-chat", "open-responses"])
def test_llm_comply(platform: Platform, form: str) -> None:
    """Shapes are as the specification has them; images are not served, a random model ends as it likes."""
    done = subprocess.run(
        [
            program("llm-comply", "llm-comply"),
            "-u",
            platform.url,
            "-k",
            ACME,
            "-m",
            "tiny",
            "--format",
            form,
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    results = json.loads(done.stdout)["results"]
    errors = [
        (result["id"], error)
        for result in results
        if result["status"] == "failed" and not result["id"].endswith("image-input")
        for error in result["errors"]
        if not error.startswith(("finish_reason: expected", "expected status='completed', got 'incomplete'"))
    ]
    assert errors == []
    assert sum(result["status"] == "passed" for result in results) >= 3
