"""PyTorch's container contract, and the toolkit's calls of a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from sagemaker_local.containers.contract import Container, ContractError
from sagemaker_local.containers.torchserve import handler
from sagemaker_local.containers.torchserve_form import TorchServeForm

IMAGE = "763104351884.dkr.ecr.eu-central-1.amazonaws.com/pytorch-inference:2.6.0-gpu-py312"
Make = Callable[..., Container]
HANDLER = """
import json
from pathlib import Path
from ts.handler_utils.utils import send_intermediate_predict_response as send

def model_fn(model_dir):
    return json.loads((Path(__file__).parent / "settings.json").read_text())

def input_fn(data, content_type):
    return json.loads(data)

def predict_fn(value, model, context):
    context.set_response_content_type(0, "text/event-stream")
    for part in value["parts"]:
        send([part], context.request_ids, "Result", 200, context)
    return model["weights"] if value["parts"] else value["missing"]

def output_fn(prediction, accept):
    return prediction, "text/plain"
"""


@pytest.fixture
def container(tmp_path: Path) -> Make:
    """A container by its model's files; further arguments are its environment."""

    def make(files: dict[str, str], **environment: str) -> Container:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        weights = "/opt/ml/additional-model-data-sources/weights"
        return Container(IMAGE, environment, {"/opt/ml/model": tmp_path, weights: tmp_path / "w"})

    return make


@pytest.mark.parametrize(
    ("files", "variables", "says"),
    [
        ({}, {}, r"has no code/inference.py, and without it: Exactly one .pth or .pt file is required"),
        ({"a.pt": "", "b.pth": ""}, {}, "Exactly one"),
        ({"model.pt": ""}, {}, "no TorchScript file"),
        ({"code/inference.py": ""}, {"SAGEMAKER_PROGRAM": "serve.py"}, "no code/serve.py"),
        ({"code/inference.py": ""}, {"SAGEMAKER_MODEL_SERVER_WORKERS": "many"}, "must be an integer"),
        ({"code/inference.py": "", "code/requirements.txt": "vllm==0.8.5"}, {}, "vllm is not installed here"),
        (
            {"code/inference.py": "", "code/requirements.txt": "httpx==0.1"},
            {},
            "not 0.1; the local SageMaker",
        ),
        ({"code/inference.py": "", "code/requirements.txt": "-r x.txt"}, {}, "is no `name==release`"),
    ],
)
def test_it_does_not_start_where_the_real_one_would_not(
    container: Make, files: dict[str, str], variables: dict[str, str], says: str
) -> None:
    with pytest.raises(ContractError, match=says):
        handler(container(files, **variables))


def test_a_handler_and_its_requirements_are_found(container: Make) -> None:
    files = {
        "code/serve.py": "",
        "code/requirements.txt": "# none\nhttpx\n\naiohttp ; python_version > '3'\n",
    }
    found = handler(container(files, SAGEMAKER_PROGRAM="serve.py"))
    assert (found.folder.name, found.module) == ("code", "serve")


async def _with(form: TorchServeForm, bodies: list[str]) -> list[tuple[int, str, str]]:
    app = web.Application()
    app.add_routes([web.post("/invocations", form.invocations)])
    found = []
    async with TestClient(TestServer(app)) as client:
        for body in bodies:
            headers = {"Content-Type": "application/json"}
            async with client.post("/invocations", data=body, headers=headers) as answer:
                found.append((answer.status, answer.content_type, await answer.text()))
    return found


def test_parts_stream_and_the_result_is_the_last(container: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = '{"weights": "/opt/ml/additional-model-data-sources/weights/x"}'
    made = container({"code/first_handler.py": HANDLER, "code/settings.json": settings})
    monkeypatch.setattr("sys.path", [*__import__("sys").path])

    async def run() -> list[tuple[int, str, str]]:
        form = TorchServeForm(Container(made.image, {"SAGEMAKER_PROGRAM": "first_handler.py"}, made.folders))
        await form._loading
        assert await form.answers()
        found = await _with(form, ['{"parts": ["a", "b"]}', '{"parts": []}'])
        await form.stop()
        return found

    streamed, failed = asyncio.run(run())
    weights = made.local("/opt/ml/additional-model-data-sources/weights/x")
    assert streamed == (200, "text/event-stream", f"ab{weights}"), "paths are those on this host"
    assert failed[0] == 500


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def transform_fn(a, b, c, d): pass\ndef input_fn(a, b): pass", "Cannot use transform_fn"),
        ("def input_fn(a, b): pass", "has no model_fn"),
        ("def model_fn(d): raise RuntimeError('no weights')", "no weights"),
    ],
)
def test_the_container_ends_if_the_model_does_not_load(
    container: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, says: str
) -> None:
    module = f"handler_{abs(hash(code))}"
    made = container({f"code/{module}.py": code})
    monkeypatch.setattr("sys.path", [*__import__("sys").path])

    async def run() -> None:
        form = TorchServeForm(Container(made.image, {"SAGEMAKER_PROGRAM": f"{module}.py"}, made.folders))
        await form.ended()
        assert not await form.answers()
        await form.stop()

    asyncio.run(run())
    assert says in capsys.readouterr().err
