"""The command line as a process against a control plane, a worker, an ingest and a gateway as processes."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from graftwork import Client
from graftwork.version import VERSION

from tests.clients.graftwork.conftest import Product

# Fixture of the gateway's tests; pytest finds it by this import.
from tests.gateway.conftest import upstream as upstream
from tests.waiting import eventually

pytestmark = pytest.mark.costly("each command is a process")


def test_login_keeps_the_key_for_its_owner_alone(product: Product, tmp_path: Path) -> None:
    cli = Product(product.url, product.gateway_url, product.key, product.inference_key, tmp_path)
    nobody = cli.run("adapters", "list")
    assert nobody.status == 2
    assert "graftwork login --url" in nobody.err
    wrong = cli.run("login", "--url", product.url, "--key-stdin", stdin="gw_a_b\n")
    assert (wrong.status, "unknown, revoked or expired" in wrong.err) == (3, True)
    assert cli.run("adapters", "list").status == 2, "a refused login stored nothing"
    cli.ok("login", "--url", product.url, "--key-stdin", stdin=product.key + "\n")
    path = tmp_path / "graftwork" / "session.json"
    assert path.stat().st_mode & 0o777 == 0o600
    who = cli.ok("whoami", "--json").json
    assert (who["tenant"], who["role"], who["gateway_url"]) == ("acme", "engineer", product.gateway_url)
    assert "adapters.write" in cli.ok("whoami").out
    path.chmod(0o644)
    assert "chmod 600" in cli.run("whoami").err
    path.chmod(0o600)
    cli.ok("logout")
    assert cli.run("whoami").status == 2


def test_a_session_that_cannot_be_kept_is_told_and_leaves_no_key(product: Product, tmp_path: Path) -> None:
    cli = Product(product.url, product.gateway_url, product.key, product.inference_key, tmp_path)
    folder, file = tmp_path / "cli", tmp_path / "file"
    folder.mkdir()
    file.touch()
    login = ("login", "--url", product.url, "--key-stdin")
    for named in (folder, file / "session.json"):
        for command in (login, ("whoami",), ("logout",)):
            done = cli.run(*command, stdin=product.key + "\n", GRAFTWORK_CLI_CONFIG=str(named))
            assert (done.status, "Traceback" in done.err) == (2, False), done
            assert f"cannot be stored in {named}" in done.err
    assert sorted(tmp_path.iterdir()) == [folder, file]
    assert list(folder.iterdir()) == []


def test_an_adapter_from_its_folder_to_an_answer_and_its_price(cli: Product, adapter_folder: Path) -> None:
    unknown = cli.run("adapters", "push", str(adapter_folder), "--name", "bot")
    assert (unknown.status, "--base-model tiny-base" in unknown.err) == (2, True)
    pushed = cli.ok(
        "adapters",
        "push",
        str(adapter_folder),
        "--name",
        "bot",
        "--base-model",
        "tiny-base",
        "--alias",
        "prod",
        "--dataset",
        "tickets-2026-09",
        "--run-url",
        "https://runs.test/41",
    )
    shown = cli.ok("adapters", "show", "bot").out
    assert "trained: tickets-2026-09, https://runs.test/41" in shown
    lying = ("--base-model", "tiny-base", "--run-url", "javascript:alert(1)")
    refused = cli.run("adapters", "push", str(adapter_folder), "--name", "bot", *lying)
    assert (refused.status, "with http:// or https://" in refused.err) == (1, True)
    taken = cli.run("adapters", "push", str(adapter_folder), "--name", "tiny-base", *lying[:2])
    assert (taken.status, "is a base model" in taken.err) == (5, True)
    assert _uploads(cli) == [], "nothing was uploaded"
    assert "v1: ready, rank 2" in pushed.out
    assert "done: " in pushed.err, "each step of the validation is told"
    again = cli.ok("adapters", "push", str(adapter_folder), "--name", "bot", "--json").json
    assert (again["number"], again["status"]) == (2, "ready")
    assert [row["name"] for row in cli.ok("adapters", "list", "--json").json] == ["bot"]
    assert "bare name: 2" in cli.ok("adapters", "show", "bot").out
    assert [row["number"] for row in cli.ok("adapters", "versions", "bot", "--json").json] == [2, 1]

    _aliases(cli)
    _chats(cli)
    _usage(cli)
    _defaults(cli, adapter_folder)

    cli.ok("adapters", "delete", "bot", "--yes")
    gone = cli.run("adapters", "show", "bot", "--json")
    assert gone.status == 4
    assert json.loads(gone.err)["error"]["problems"][0]["code"] == "not_found"


def _aliases(cli: Product) -> None:
    assert cli.ok("alias", "set", "bot", "prod", "2").out.strip() == "bot@prod: v2"
    moved = cli.run("alias", "set", "bot", "prod", "1", "--if-version", "1")
    assert (moved.status, "is at version 2, not 1" in moved.err) == (5, True), moved
    assert cli.ok("alias", "set", "bot", "prod", "1=90,2=10").out.strip() == "bot@prod: v1 90%, v2 10%"
    assert cli.ok("alias", "rollback", "bot", "prod").out.strip() == "bot@prod: v2"
    assert "v1 90%, v2 10%" in cli.ok("alias", "history", "bot", "prod").out
    (line,) = cli.ok("alias", "list", "bot", COLUMNS="80").out.splitlines()[1:]
    assert re.fullmatch(r"prod +2 +\d{4}-\d\d-\d\d \d\d:\d\dZ", line.strip()), "a row is a line"
    (row,) = cli.ok("alias", "list", "bot", "--json").json
    assert datetime.fromisoformat(row["moved_at"]).microsecond, "JSON has the whole time"
    assert (row["name"], row["version"]) == ("prod", 2)
    assert cli.run("alias", "set", "bot", "prod", "9").status == 4
    assert cli.run("alias", "set", "bot", "v3", "1").status == 1
    assert "is not a version" in cli.run("alias", "set", "bot", "prod", "new").err


def _chats(cli: Product) -> None:
    talk = cli.ok("chat", "bot@prod", "How do I bake bread?")
    assert talk.out.startswith("tok0")
    assert "tokens" in talk.err
    told = cli.ok("chat", "bot", "-", "--json", stdin="Hello").json
    assert told["completion_tokens"] == 64
    assert told["served_model"] == "bot@v2", told
    both = cli.ok("chat", "tiny-base", stdin="one\ntwo\n")
    assert both.out.count("tok0") == 2
    missing = cli.run("chat", "nowhere", "Hello")
    assert missing.status == 4
    # A key that may only call models needs to be told where.
    alone = {"GRAFTWORK_API_KEY": cli.inference_key}
    assert cli.run("chat", "bot", "Hello", **alone).status == 3
    alone["GRAFTWORK_CLI_GATEWAY_URL"] = cli.gateway_url
    assert cli.ok("chat", "bot", "Hello", **alone).out.startswith("tok0")


def _usage(cli: Product) -> None:
    def rows_of_all() -> list[Any]:
        rows: list[Any] = cli.ok("usage", "--by", "adapter", "--json").json["rows"]
        return rows if sum(row["requests"] for row in rows) == 5 else []

    rows = eventually(rows_of_all, message="all five requests are in the report")
    assert {row["group"]["adapter"]: row["requests"] for row in rows} == {"": 2, "bot": 3}
    assert all(float(row["price"]) > 0 for row in rows)
    assert "total" in cli.ok("usage").out
    assert cli.run("usage", "--start", "yesterday").status == 2
    assert cli.run("usage", "--by", "moon").status == 1


def _defaults(cli: Product, folder: Path) -> None:
    """It was called by its bare name, so a new version does not take over."""
    kept = cli.ok("adapters", "push", str(folder), "--name", "bot")
    assert "callers of bot get v2, also once it is ready" in kept.err
    assert "graftwork adapters default bot 3" in kept.err
    assert cli.ok("adapters", "default", "bot", "3").out.strip() == "callers of bot get v3"
    assert cli.ok("adapters", "rollback", "bot").out.strip() == "callers of bot get v2"
    assert cli.run("adapters", "default", "bot", "new").status == 2
    taken = cli.ok("adapters", "push", str(folder), "--name", "bot", "--make-default")
    assert "callers of bot get v2, until the new version is ready" in taken.err
    assert "callers of bot get v4" in taken.err


def test_what_is_refused_ends_with_a_reason(cli: Product, adapter_folder: Path) -> None:
    weights = adapter_folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    push = ("adapters", "push", str(adapter_folder), "--name", "broken", "--base-model", "tiny-base")
    refused = cli.run(*push)
    assert (refused.status, "not a whole safetensors file" in refused.err) == (1, True)
    weights.rename(adapter_folder / "adapter_model.bin")
    pickle = cli.run(*push)
    assert (pickle.status, "graftwork convert" in pickle.err) == (2, True)
    for other, reason in (
        ("adapter_model.safetensors.index.json", "saved in shards"),
        ("adapters.safetensors", "saved by mlx-lm"),
    ):
        (adapter_folder / "adapter_model.bin").rename(adapter_folder / "adapter_model.bin.old")
        (adapter_folder / other).write_bytes(b"x")
        assert reason in cli.run(*push).err
        (adapter_folder / other).rename(adapter_folder / "adapter_model.bin")
    assert "is not a folder" in cli.run("adapters", "push", "/nowhere", "--name", "x").err
    away = cli.run("whoami", GRAFTWORK_API_URL="http://127.0.0.1:1")
    assert (away.status, "check that the URL is right" in away.err) == (6, True)


def test_the_version_is_told(cli: Product) -> None:
    assert cli.ok("--version").out == f"graftwork {VERSION}\n"
    assert "Register adapters" in cli.ok("--help").out


def test_keys_are_made_rotated_and_revoked(cli: Product) -> None:
    made = cli.ok("keys", "create", "ci", "--scope", "manage", "--days", "1", "--json").json
    mine = {"GRAFTWORK_API_KEY": made["key"]}
    assert cli.ok("whoami", "--json", **mine).json["key"] == made["public_id"]
    fresh = cli.ok("keys", "rotate", made["public_id"]).out.strip()
    assert cli.run("whoami", **mine).status == 3
    mine["GRAFTWORK_API_KEY"] = fresh
    cli.ok("whoami", **mine)
    cli.ok("keys", "revoke", made["public_id"])
    assert cli.run("whoami", **mine).status == 3
    assert made["public_id"] not in cli.ok("keys", "list").out
    assert "revoked" in cli.ok("keys", "list", "--all").out
    assert cli.run("keys", "revoke", "nobody").status == 4
    assert cli.run("keys", "create", "x", "--scope", "moon").status == 1


def test_the_shell_completes_names(cli: Product, adapter_folder: Path) -> None:
    # Else Typer looks for the shell among the process's parents, where a build server has none.
    assert (
        "complete"
        in cli.ok("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").out.lower()
    )
    cli.ok(
        "adapters", "push", str(adapter_folder), "--name", "whale", "--base-model", "tiny-base", "--no-wait"
    )
    words = {
        "_GRAFTWORK_COMPLETE": "complete_bash",
        "COMP_WORDS": "graftwork adapters show wh",
        "COMP_CWORD": "3",
    }
    assert "whale" in cli.run(**words).out


def test_a_pickle_becomes_what_the_server_takes(cli: Product, adapter_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from torch import save

    weights = adapter_folder / "adapter_model.safetensors"
    save(load_file(weights), adapter_folder / "adapter_model.bin")
    weights.unlink()
    made = str(tmp_path / "made")
    assert "graftwork adapters push" in cli.ok("convert", str(adapter_folder), made).out
    assert cli.run("convert", str(adapter_folder), made).status == 2, "nothing is overwritten"
    push = ("adapters", "push", made, "--name", "converted", "--base-model", "tiny-base", "--json")
    assert cli.ok(*push).json["status"] == "ready"


def test_a_push_that_was_broken_off_goes_on(
    cli: Product, adapter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graftwork.uploads.CHUNK", 512)
    unfinished = cli.home / "graftwork" / "uploads.json"
    cut = adapter_folder.joinpath("adapter_config.json").stat().st_size + 512

    def interrupt(sent: int, total: int) -> None:
        if sent >= cut:
            raise KeyboardInterrupt

    with Client(cli.url, cli.key, unfinished=unfinished) as client:
        with pytest.raises(KeyboardInterrupt):
            client.adapters.push(adapter_folder, name="long", base_model="tiny-base", progress=interrupt)
        waiting = {upload["name"]: upload["offset"] for upload in _uploads(cli)}
    assert waiting["adapter_model.safetensors"] == 512
    # Another process, which finds the session beside the file.
    push = ("adapters", "push", str(adapter_folder), "--name", "long", "--base-model", "tiny-base")
    assert cli.ok(*push, "--json").json["status"] == "ready"
    assert json.loads(unfinished.read_text()) == {}
    assert len(_uploads(cli)) <= len(waiting), "nothing was begun anew"


def _uploads(cli: Product) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {cli.key}"}
    found = httpx.get(f"{cli.url}/api/v1/uploads", headers=headers).json()
    return list(found["results"])
