"""The client's retries when requests fail, over real sockets to a server that fails on demand."""

from __future__ import annotations

import gc
import json
import threading
import tomllib
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from graftwork import (
    ApiError,
    ChangedError,
    Client,
    ConfigurationError,
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    RateLimitedError,
    ServerError,
)
from graftwork.folder import AdapterFolder
from graftwork.uploads import _PAUSES
from graftwork.version import VERSION

from controlplane.artifacts.uploads.append import LEASE
from tests.conftest import ROOT
from tests.controlplane.conftest import adapter_files

KEY = {"public_id": "k1", "name": "ci", "scopes": ["inference"], "key": "gw_k1_s", "new": "field"}

Answer = tuple[int, dict[str, str], Any]


@dataclass
class Script:
    """Answers in order, `None` for a connection that breaks; what was asked."""

    answers: list[tuple[int, dict[str, str], Any] | None]
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def serving(*answers: tuple[int, dict[str, str], Any] | None) -> Iterator[tuple[Client, Script]]:
    script = Script(list(answers))

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.asked.append((self.command, self.path, dict(self.headers), body))
            if (told := script.answers.pop(0)) is None:
                self.connection.close()
                return
            status, headers, value = told
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}", "gw_a_b", retries=2) as client:
            yield client, script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problem(code: str = "x", detail: str = "why", attr: str | None = None) -> dict[str, Any]:
    return {"type": "client_error", "errors": [{"code": code, "detail": detail, "attr": attr}]}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr("graftwork.transport.time.sleep", taken.append)
    return taken


def test_a_creation_is_repeated_under_one_idempotency_key(pauses: list[float]) -> None:
    in_progress = (409, {"Retry-After": "1"}, problem("in_progress"))
    with serving(None, in_progress, (201, {}, KEY)) as (client, script):
        assert client.keys.create("ci").key == "gw_k1_s"
    keys = {headers["Idempotency-Key"] for _, _, headers, _ in script.asked}
    assert (len(script.asked), len(keys)) == (3, 1)
    assert pauses[1] == 1.0
    with serving((201, {}, KEY)) as (client, other):
        client.keys.create("ci")
    assert other.asked[0][2]["Idempotency-Key"] not in keys


def test_it_waits_as_it_is_asked_to_and_gives_up(pauses: list[float]) -> None:
    busy = (429, {"Retry-After": "7"}, problem("throttled", "slow down"))
    slow = pytest.raises(RateLimitedError, match="slow down")
    with serving(busy, busy, busy) as (client, script), slow as refused:
        client.keys.get("k1")
    assert (len(script.asked), pauses, refused.value.retry_after) == (3, [7.0, 7.0], 7.0)
    with serving((503, {"Retry-After": "3600"}, problem())) as (client, _), pytest.raises(ServerError):
        client.keys.get("k1")
    assert len(pauses) == 2, "an hour is not waited for"


def test_pauses_grow_and_are_spread(pauses: list[float]) -> None:
    with (
        serving(None, None, None) as (client, _),
        pytest.raises(ConnectionFailedError, match="does not respond"),
    ):
        client.keys.get("k1")
    assert 0.25 <= pauses[0] <= 0.5 <= pauses[1] <= 1.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (409, ConflictError),
        (412, ChangedError),
        (428, ChangedError),
        (418, ApiError),
    ],
)
def test_what_a_repetition_does_not_help_is_sent_once(status: int, kind: type[ApiError]) -> None:
    raised = pytest.raises(kind, match="name: no good")
    with serving((status, {}, problem("bad", "no good", "name"))) as (client, script), raised as refused:
        client.keys.create("ci")
    assert (len(script.asked), refused.value.code, refused.value.retryable) == (1, "bad", False)


def test_a_deletion_whose_answer_was_lost_has_been_done() -> None:
    with serving(None, (404, {}, problem("not_found"))) as (client, _):
        client.keys.revoke("k1")
    with serving((404, {}, problem("not_found"))) as (client, _), pytest.raises(ApiError):
        client.keys.revoke("k1")


def test_lists_go_on_to_the_next_page_at_our_own_address() -> None:
    first = {
        "results": [KEY],
        "next": "https://inner.test/api/v1/keys?cursor=abc&page_size=1",
        "previous": None,
    }
    last = {"results": [{**KEY, "public_id": "k2"}], "next": None, "previous": None}
    with serving((200, {}, first), (200, {}, last)) as (client, script):
        rows = client.keys.list(live=True, page_size=1, search=None)
        assert [next(rows).public_id, len(script.asked)] == ["k1", 1], "a page is fetched when it is needed"
        assert [row.public_id for row in rows] == ["k2"]
    assert [path for _, path, _, _ in script.asked] == [
        "/api/v1/keys?live=true&page_size=1",
        "/api/v1/keys?cursor=abc&page_size=1",
    ]


def test_a_condition_is_passed_on() -> None:
    with serving((200, {"ETag": '"a"'}, KEY), (200, {}, KEY)) as (client, script):
        client.keys.update("k1", etag=client.etag("/keys/k1"), allowed_models=None)
    assert script.asked[1][2]["If-Match"] == '"a"'
    assert json.loads(script.asked[1][3]) == {"allowed_models": None}


def test_an_upload_goes_on_after_a_part_whose_answer_was_lost(tmp_path: Path) -> None:
    files = adapter_files()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    config, weights = (len(data) for data in files.values())
    told: list[tuple[int, int]] = []
    with serving(
        (200, {}, {"default_version": None, "becomes_default": True}),
        (201, {}, {"id": "u1", "name": "adapter_config.json", "size": config}),
        (204, {"Upload-Offset": str(config)}, None),
        (201, {}, {"id": "u2", "name": "adapter_model.safetensors", "size": weights}),
        None,
        (409, {}, problem("conflict", "the upload is elsewhere")),
        (200, {}, {"id": "u2", "name": "adapter_model.safetensors", "size": weights, "offset": 100}),
        (204, {"Upload-Offset": str(weights)}, None),
        (201, {}, {"adapter": "bot", "number": 1, "status": "pending"}),
    ) as (client, script):
        client.adapters.push(
            tmp_path, name="bot", base_model="b", progress=lambda sent, total: told.append((sent, total))
        )
    assert script.asked[-2][3] == files["adapter_model.safetensors"][100:]
    assert json.loads(script.asked[-1][3])["uploads"] == ["u1", "u2"]
    assert [sent for sent, _ in told] == [0, config, config, config + 100, config + weights]
    assert {total for _, total in told} == {config + weights}


def test_a_registration_is_checked_before_files_are_sent(tmp_path: Path) -> None:
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
    size = sum(map(len, adapter_files().values()))
    with (
        serving((409, {}, problem("conflict", "'bot' is a base model"))) as (client, script),
        pytest.raises(ConflictError, match="is a base model"),
    ):
        client.adapters.push(tmp_path, name="bot", base_model="b", run_url="https://runs.test/1")
    ((method, path, _, body),) = script.asked
    assert (method, path) == ("POST", "/api/v1/adapter-checks")
    assert json.loads(body) == {
        "name": "bot",
        "base_model": "b",
        "make_default": None,
        "run_url": "https://runs.test/1",
        "size_bytes": size,
    }


def test_a_server_without_checks_gets_the_upload_all_the_same(tmp_path: Path) -> None:
    uploads: list[Answer] = []
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
        uploads += [(201, {}, {"id": name[:9], "name": name, "size": len(data)})]
        uploads += [(204, {"Upload-Offset": str(len(data))}, None)]
    absent: Answer = (404, {}, problem("not_found", "there is no such route"))
    made: Answer = (201, {}, {"adapter": "bot", "number": 1, "status": "pending"})
    checks: list[object] = []
    with serving(absent, (200, {}, {"name": "b"}), *uploads, made) as (client, script):
        client.adapters.push(tmp_path, name="bot", base_model="b", on_check=checks.append)
    assert checks == []
    paths = [path for _, path, _, _ in script.asked]
    assert (paths[:3], paths[-1]) == (
        ["/api/v1/adapter-checks", "/api/v1/base-models/b", "/api/v1/uploads"],
        "/api/v1/adapters",
    )


def test_an_unknown_base_model_is_refused_before_files_are_sent(tmp_path: Path) -> None:
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
    unknown: Answer = (404, {}, problem("not_found", "there is no base model 'a/b'"))
    with (
        serving(unknown, unknown) as (client, script),
        pytest.raises(NotFoundError, match="there is no base model"),
    ):
        client.adapters.push(tmp_path, name="bot", base_model="a/b")
    assert [path for _, path, _, _ in script.asked] == ["/api/v1/adapter-checks", "/api/v1/base-models/a%2Fb"]


def test_a_trainers_output_is_pushed_without_its_checkpoints(tmp_path: Path) -> None:
    for folder in (tmp_path / "checkpoint-500", tmp_path / "checkpoint-1000"):
        folder.mkdir()
        for name, data in adapter_files().items():
            (folder / name).write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"choose one of its checkpoints, such as .*checkpoint-1000"):
        AdapterFolder(tmp_path)
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
    assert [file.parent for file in AdapterFolder(tmp_path).files] == [tmp_path, tmp_path]


def test_a_registration_that_is_refused_after_its_upload_leaves_none(tmp_path: Path) -> None:
    sizes = {}
    for name, data in adapter_files().items():
        (tmp_path / name).write_bytes(data)
        sizes[name] = len(data)
    sent: list[Answer] = []
    for name, size in sizes.items():
        sent += [(201, {}, {"id": name[:9], "name": name, "size": size})]
        sent += [(204, {"Upload-Offset": str(size)}, None)]
    full: Answer = (409, {}, problem("conflict", "the tenant may keep 1 adapter and has 1"))
    # One of the uploads has expired meanwhile: the refusal is told all the same.
    gone: Answer = (404, {}, problem("not_found", "no upload"))
    with (
        serving((200, {}, {}), *sent, full, gone, (204, {}, None)) as (client, script),
        pytest.raises(ConflictError, match="may keep 1 adapter"),
    ):
        client.adapters.push(tmp_path, name="bot", base_model="b")
    removed = [path for method, path, _, _ in script.asked if method == "DELETE"]
    assert removed == [f"/api/v1/uploads/{name[:9]}" for name in sizes]


def test_an_upload_that_another_process_holds_is_no_refusal(tmp_path: Path, pauses: list[float]) -> None:
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(b"weights!")
    made = {"id": "u1", "name": file.name, "size": 8}
    held: tuple[Answer, Answer] = (
        (409, {}, problem("conflict", "another request is writing")),
        (200, {}, made),
    )
    with (
        serving((201, {}, made), *held * (len(_PAUSES) + 1)) as (client, _),
        pytest.raises(ConnectionFailedError, match="another process is sending adapter_model"),
    ):
        client.adapters._uploads.send(file, progress=lambda _: None)


def test_the_version_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION


def test_an_upload_waits_as_long_as_a_request_that_died_may_hold_it(
    tmp_path: Path, pauses: list[float]
) -> None:
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(b"weights!")
    made = {"id": "u1", "name": file.name, "size": 8}
    held: tuple[Answer, Answer] = (
        (409, {}, problem("conflict", "another request is writing")),
        (200, {}, made),
    )
    with serving((201, {}, made), *held * 3, (204, {"Upload-Offset": "8"}, None)) as (client, script):
        assert client.adapters._uploads.send(file, progress=lambda _: None) == "u1"
    assert pauses == [1.0, 2.0, 4.0]
    assert script.asked[-1][3] == b"weights!"
    assert sum(_PAUSES) > LEASE.total_seconds()


def test_a_part_that_was_sent_is_held_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, parts = 1 << 20, 16
    monkeypatch.setattr("graftwork.uploads.CHUNK", part)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(bytes(part * parts))
    made = {"id": "u1", "name": file.name, "size": part * parts}
    offsets: list[Answer] = [
        (204, {"Upload-Offset": str(part * number)}, None) for number in range(1, parts + 1)
    ]
    # The same again after a refusal, whose traceback must not hold it either.
    refused: tuple[Answer, Answer] = ((409, {}, problem("conflict", "elsewhere")), (200, {}, made))
    with serving((201, {}, made), *refused * 3, *offsets) as (client, script):
        gc.disable()
        tracemalloc.start()
        try:
            client.adapters._uploads.send(file, progress=lambda _: script.asked.clear())
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < 3 * part, f"{held / part:.1f} parts are held after the upload"


def test_what_is_no_api_is_said_to_be_none() -> None:
    with (
        serving((200, {}, "a page")) as (client, _),
        pytest.raises(ConnectionFailedError, match="check the URL"),
    ):
        client.keys.get("k1")
    with serving((404, {}, None)) as (client, _), pytest.raises(ApiError, match="answered 404"):
        client.keys.get("k1")
    with pytest.raises(ConfigurationError, match="http"):
        Client("graftwork.example", "gw_a_b")
