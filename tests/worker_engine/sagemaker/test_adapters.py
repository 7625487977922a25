"""Adapters by name: LMI's management API, vLLM's routes, content identity, forbidden places."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.worker_engine.sagemaker.conftest import Container
from tests.worker_engine.sagemaker.test_invocations import GREEDY, completion
from tests.worker_engine.tiny_adapter import adapter_ref
from tests.worker_process import run_worker


def generated(container: Container, name: str) -> str:
    text: str = container.invoke({"inputs": "hello", "adapters": name, "parameters": GREEDY})[
        "generated_text"
    ]
    return text


def test_the_folders_adapters_are_there_from_the_start(container: Container) -> None:
    listed = container.call("GET", "/adapters")[2]["adapters"]
    assert [item["name"] for item in listed][:2] == ["all", "plain"]
    models = container.worker.client.models.list().data
    by_id = {item.id: item.model_dump() for item in models}
    assert by_id["plain"]["parent"] == "tiny"
    assert by_id["tiny"]["parent"] is None


def test_the_management_api_in_lmis_words(container: Container, tiny_adapters: dict[str, Path]) -> None:
    shutil.copytree(tiny_adapters["rslora"], container.root / "other")
    src = quote((container.root / "other").as_uri(), safe="")
    status, _, answer = container.call("POST", f"/adapters?name=a1&src={src}&preload=false&pin=false")
    assert (status, answer) == (200, {"status": "Adapter a1 registered"})
    assert generated(container, "a1") == completion(container, "hello", adapter_ref(tiny_adapters["rslora"]))
    shown = container.call("GET", "/adapters/a1")[2]
    assert (shown["name"], shown["src"], shown["pin"]) == ("a1", (container.root / "other").as_uri(), False)
    assert container.call("POST", "/adapters/a1/update?pin=true")[2] == {"status": "Adapter a1 updated"}
    assert container.call("GET", "/models/tiny/adapters/a1")[2]["pin"] is True
    page = container.call("GET", "/adapters?limit=2")[2]
    assert (len(page["adapters"]), page["nextPageToken"]) == (2, "2")
    rest = container.call("GET", "/adapters?limit=100&next_page_token=2")[2]
    assert "a1" in [item["name"] for item in rest["adapters"]]
    assert "nextPageToken" not in rest
    assert container.call("DELETE", "/models/tiny/adapters/a1")[2] == {"status": "Adapter a1 unregistered"}
    status, _, answer = container.call("GET", "/adapters/a1")
    assert (status, answer["code"], answer["type"]) == (404, 404, "AdapterNotFound")
    body = {"name": "a1", "src": str(container.root / "other")}
    assert container.call("POST", "/adapters", body)[0] == 200, "SageMaker's own form is a JSON body"
    assert container.call("DELETE", "/adapters/a1")[0] == 200


def test_changed_content_needs_a_new_registration_and_gets_a_new_identity(
    container: Container, tiny_adapters: dict[str, Path]
) -> None:
    """Neither old weights nor old prefixes are served under the name afterwards."""
    folder = container.root / "changing"
    shutil.copytree(tiny_adapters["plain"], folder)
    load = {"lora_name": "changing", "lora_path": str(folder)}
    status, _, text = container.call("POST", "/v1/load_lora_adapter", load)
    assert (status, text) == (200, "Success: LoRA adapter 'changing' added successfully.")
    prompt = "p" * 64
    before = completion(container, prompt, model="changing")
    old = container.call("GET", "/adapters/changing")[2]["sha256"]
    shutil.rmtree(folder)
    shutil.copytree(tiny_adapters["all"], folder)
    assert completion(container, prompt, model="changing") == before, "a name stands for content"
    assert container.call("POST", "/v1/load_lora_adapter", load)[0] == 400
    assert container.call("POST", "/v1/load_lora_adapter", load | {"load_inplace": True})[0] == 200
    assert container.call("GET", "/adapters/changing")[2]["sha256"] != old
    after = completion(container, prompt, model="changing")
    assert after == completion(container, prompt, adapter_ref(tiny_adapters["all"]))
    assert after != before
    unload = {"lora_name": "changing"}
    text = container.call("POST", "/v1/unload_lora_adapter", unload)[2]
    assert text == "Success: LoRA adapter 'changing' removed successfully."
    status, _, answer = container.call("POST", "/v1/unload_lora_adapter", unload)
    assert (status, answer["error"]["param"]) == (404, "lora_name")
    status, body = container.worker.complete(model="changing")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


def test_local_sources_stay_in_their_folder(
    container: Container, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    outside = tiny_adapters["all"]
    (container.root / "link").symlink_to(outside)
    (container.root / "files").mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (container.root / "files" / file).symlink_to(outside / file)
    up = f"../../{'../' * 20}{str(outside).lstrip('/')}"
    sources = [
        str(outside),
        outside.as_uri(),
        "/",
        "/etc",
        "..",
        up,
        f"{container.root}/../",
        "link",
        "files",
        f"file://{quote(up)}",
        "nothing-here",
        "plain\0",
        "x" * 4000,
        "file://elsewhere/plain",
        "http://x/y",
        "s3://",
        "",
        "ftp://x",
        "file:",
        "[::1",
        "http://[::1",
    ]
    for src in sources:
        # Of places outside the root nothing is told, not even that they are not there.
        expected = 404 if src in ("nothing-here", "[::1") else 400
        status, _, answer = container.call("POST", "/adapters", {"name": "evil", "src": src})
        kind, text = ("AdapterFilesNotFound", "no adapter") if expected == 404 else ("InvalidRequest", "src")
        assert (status, answer["type"]) == (expected, kind), (src, answer)
        assert text in answer["message"]
        load = {"lora_name": "evil", "lora_path": src}
        status, _, answer = container.call("POST", "/v1/load_lora_adapter", load)
        assert (status, answer["error"]["param"]) == (expected, "lora_path"), (src, answer)
    (container.root / "link").unlink()
    shutil.rmtree(container.root / "files")
    assert container.call("GET", "/adapters/evil")[0] == 404


def test_a_folder_that_is_gone_is_a_404_in_every_way_in(
    container: Container, tiny_adapters: dict[str, Path]
) -> None:
    shutil.copytree(tiny_adapters["plain"], container.root / "leaving")
    assert container.call("POST", "/adapters", {"name": "leaving", "src": "leaving"})[0] == 200
    shutil.rmtree(container.root / "leaving")
    for path, body in (
        ("/adapters", {"name": "new", "src": "leaving"}),
        ("/adapters/leaving/update", {}),
        ("/adapters/leaving/update", {"src": f"file://{container.root}/leaving"}),
        ("/models/tiny/adapters/leaving/update", {}),
        ("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "leaving"}),
    ):
        status, _, answer = container.call("POST", path, body)
        assert (status, "no adapter at" in str(answer)) == (404, True), (path, answer)
    assert generated(container, "leaving"), "a name stands for the content that it was registered with"
    assert container.call("DELETE", "/adapters/leaving")[0] == 200


@pytest.mark.parametrize("name", ["", "..", "a/b", "tiny", "x" * 300, "a b", "é", ".hidden", "plain"])
def test_names_are_refused(container: Container, name: str) -> None:
    """Refuse the base model's name, registered names, and names that are no path segment."""
    status, _, answer = container.call("POST", "/adapters", {"name": name, "src": "all"})
    assert (status, "name" in answer["message"] or "registered" in answer["message"]) == (400, True)


def test_a_corrupted_adapter_is_refused_at_registration(
    container: Container, tiny_adapters: dict[str, Path]
) -> None:
    bad = container.root / "bad"
    shutil.copytree(tiny_adapters["plain"], bad)
    weights = bad / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    status, _, answer = container.call("POST", "/adapters", {"name": "bad", "src": "bad"})
    assert (status, answer["type"]) == (400, "AdapterRefused")
    assert "adapter_model.safetensors" in answer["message"]
    assert container.call("GET", "/adapters/bad")[0] == 404
    lazy = {"name": "bad", "src": "bad", "preload": False}
    assert container.call("POST", "/adapters", lazy)[0] == 200, "read when it is first called"
    status, _, answer = container.call("POST", "/invocations", {"inputs": "x", "adapters": "bad"})
    assert (status, "safetensors" in answer["error"]) == (424, True)
    assert container.call("DELETE", "/adapters/bad")[0] == 200
    (bad / "adapter_config.json").write_text(json.dumps({"peft_type": "IA3"}))
    assert container.call("POST", "/adapters", lazy)[2]["type"] == "AdapterRefused"
    shutil.rmtree(bad)
    assert generated(container, "plain")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/adapters?name=a", None, 400),
        ("POST", "/adapters?src=all", None, 400),
        ("POST", "/adapters?name=a&src=all&pin=maybe", None, 400),
        ("POST", "/adapters?name=a&name=b&src=all", None, 400),
        ("POST", "/adapters?name=a&src=all&x=1", None, 400),
        ("POST", "/adapters", {"name": 1, "src": "all"}, 400),
        ("POST", "/adapters", {"name": "a", "src": []}, 400),
        ("POST", "/adapters?name=a", {"name": "a", "src": "all"}, 400),
        ("GET", "/adapters?limit=0", None, 400),
        ("GET", "/adapters?limit=x", None, 400),
        ("GET", "/adapters?next_page_token=-1", None, 400),
        ("GET", "/adapters?limit=" + "9" * 5000, None, 400),
        ("GET", "/models/other/adapters", None, 404),
        ("DELETE", "/adapters/nobody", None, 404),
        ("POST", "/adapters/nobody/update", None, 404),
        ("GET", "/adapters/%ff", None, 404),
    ],
)
def test_bad_management_requests(
    container: Container, method: str, path: str, body: object, status: int
) -> None:
    answered, _, answer = container.call(method, path, body)
    assert answered == status, answer
    assert set(answer) == {"code", "type", "message"}
    assert answer["code"] == status
    assert container.call(method, path, body, token="wrong")[0] == 401


@pytest.mark.costly("starts a worker twice")
def test_a_broken_adapter_in_the_folder_stops_the_start(
    tiny_model: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    """In the model's own folder, where SageMaker puts them; a relative path means the same."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    shutil.copytree(tiny_adapters["plain"], model / "adapters" / "good")
    (tmp_path / "one").mkdir()
    with run_worker(Path(os.path.relpath(model)), tmp_path / "one") as worker:
        assert worker.complete(model="good")[0] == 200
    (model / "adapters" / "good" / "adapter_config.json").write_text("{")
    (tmp_path / "two").mkdir()
    with (
        pytest.raises(RuntimeError, match=r"adapter .*good: .*not JSON"),
        run_worker(model, tmp_path / "two"),
    ):
        pass
    assert "Traceback" not in (tmp_path / "two" / "log").read_text()
