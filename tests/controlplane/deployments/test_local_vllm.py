"""vLLM on a host without vLLM: its flags, what is refused by name, and a host that lacks the program.

`tests/vllm` runs real servers.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from controlplane.catalog.models import BaseModel
from controlplane.deployments.capabilities import absent_routes
from controlplane.deployments.containers.images import VLLM_SERVER
from controlplane.deployments.containers.options import LmiOptions
from controlplane.deployments.containers.vllm import vllm_flags
from controlplane.deployments.copies.services import copy_register
from controlplane.deployments.desired import desired_of
from controlplane.deployments.models import Deployment
from controlplane.deployments.provisioners.local import marks
from controlplane.deployments.provisioners.local.engines import VLLM, engine_of
from controlplane.deployments.provisioners.local.marks import Marks
from controlplane.deployments.provisioners.local.processes import Process, start_detached
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_create
from controlplane.deployments.targets.services import target_create
from controlplane.errors import InvalidInputError
from controlplane.routes.selectors import route_base
from tests.controlplane.deployments.test_images import OTHERS
from tests.waiting import eventually

pytestmark = pytest.mark.django_db
BESIDE: dict[str, dict[str, Any]] = {
    "speculation_tokens": {"speculation": "ngram"},
    "draft_model": {"speculation": "draft", "draft_model": "/models/draft"},
}


def deploy(base: BaseModel, **values: Any) -> Deployment:
    target = target_create(name="here", kind="local")
    return deployment_create(
        name="tiny", target=target, base_model=base, **{"image_family": "vllm", **values}
    )


@pytest.mark.parametrize("option", [item.name for item in dataclasses.fields(LmiOptions)])
def test_every_option_becomes_a_flag_or_is_refused_by_name(option: str) -> None:
    beside = BESIDE.get(option, {})
    value = {"draft_model": "/models/other"}.get(option, OTHERS[option])
    if option in ("lora_extra_vocab_size", "rolling_batch", "accept_eula"):
        with pytest.raises(InvalidInputError) as caught:
            LmiOptions.from_values({option: value}, VLLM_SERVER)
        assert caught.value.field == f"options.{option}"
        return
    before = vllm_flags(LmiOptions.from_values(beside, VLLM_SERVER))
    after = vllm_flags(LmiOptions.from_values({**beside, option: value}, VLLM_SERVER))
    assert after != before


def test_the_flags_of_a_deployment(tiny: BaseModel) -> None:
    environment = {"GRAFTWORK_VLLM_FLAG_BLOCK_SIZE": "32", "GRAFTWORK_VLLM_FLAG_ENFORCE_EAGER": ""}
    made = deploy(tiny, options={"max_loras": 2}, environment={**environment, "VLLM_LOGGING_LEVEL": "ERROR"})
    state = desired_of(made)
    engine = engine_of(made.image_family)
    assert engine is VLLM
    flags = engine.flags(state)
    assert flags[:4] == ["serve", tiny.source, "--served-model-name", "tiny"]
    assert flags[-3:] == ["--block-size", "32", "--enforce-eager"]
    assert flags[flags.index("--max-cpu-loras") + 1] == "8"
    assert engine.variables(state) == {"VLLM_LOGGING_LEVEL": "ERROR"}


def test_the_limit_of_images_is_in_the_routes(tiny: BaseModel) -> None:
    made = deploy(tiny, environment={"GRAFTWORK_VLLM_FLAG_LIMIT_MM_PER_PROMPT": '{"image": 3}'})
    assert [item.max_images for item in absent_routes(tiny)] == [3]
    copy_register(base_model=tiny, kind="openai_http", url="http://v:1", deployment=made)
    copy_register(base_model=tiny, kind="openai_http", url="http://w:1")
    route = route_base(base_model=tiny.name)
    assert route is not None
    copies = {item.url: item.max_images for item in route.copies}
    assert copies == {"http://v:1": 3, "http://w:1": None}


def test_the_token_is_in_the_environment_alone(tiny: BaseModel, settings: Settings, tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.touch(mode=0o755)
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, vllm=str(program))
    folder = tmp_path / "deployments" / "tiny" / "0123abcd-0"
    launch = VLLM.launch(desired_of(deploy(tiny)), folder, "127.0.0.1", 8000, "a-secret")
    assert launch.command[0] == str(program)
    assert not any("a-secret" in part for part in launch.command)
    assert launch.environment["VLLM_API_KEY"] == "a-secret"
    assert not any(name.startswith(("GRAFTWORK", "DJANGO")) for name in launch.environment)
    assert VLLM.folder_of(Process(1, tuple(launch.command))) == folder
    marks = Marks(folder.parent)
    token = marks.new_token(folder.name)
    assert marks.token(folder.name) == token != marks.new_token(folder.name)
    assert not any(token in path.read_text() for path in folder.parent.iterdir())


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"environment": {"GRAFTWORK_VLLM_FLAG_HOST": "0.0.0.0"}}, "environment"),
        *(
            ({"environment": {f"GRAFTWORK_VLLM_FLAG_{flag}": "x"}}, "environment")
            for flag in (
                "TENSOR_PAR",
                "MIDDLEWARE",
                "MIDDLEW",
                "DATA_PARALLEL_SIZE",
                "ENFORCE",
                "LOGITS_PROCESSORS",
            )
        ),
        ({"environment": {"GRAFTWORK_VLLM_FLAG_SEED": "--middleware=os.abort"}}, "environment"),
        ({"environment": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "False"}}, "environment"),
        ({"environment": {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "2"}}, "environment"),
        ({"environment": {"VLLM_API_KEY": "k"}}, "environment"),
        ({"options": {"enable_lora": False}}, "options.enable_lora"),
        ({"options": {"speculation": "draft", "draft_model": "hf://a/b"}}, "options.draft_model"),
        ({"image_family": "tgi"}, "image_family"),
        ({"image": "lmi-0.38.0"}, "image"),
    ],
)
def test_what_has_no_effect_is_refused_by_name(tiny: BaseModel, values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        deploy(tiny, **values)
    assert caught.value.field == field


def test_a_host_without_vllm_is_told_what_to_set(
    tiny: BaseModel, settings: Settings, local_root: Path
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, vllm="/nowhere/vllm")
    made = deploy(tiny)
    deployment_reconcile(deployment_id=made.pk)
    made.refresh_from_db()
    assert made.status == Deployment.Status.FAILED
    assert "GRAFTWORK_VLLM" in made.reason


def test_a_copys_log_is_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "LOG_BYTES", 10)
    folder, old = tmp_path / "deployment", 0o644
    folder.mkdir()
    (folder / "0a-0.log").touch(old)
    os.mkfifo(folder / "go")
    log, older = Marks(folder).log("0a-0"), folder / "0a-0.log.1"
    command = ["sh", "-c", "echo 0123456789abc; read line <go; echo end"]
    start_detached(command, log=log, environment=os.environ, cwd=folder)
    eventually(lambda: log.read_text() == "0123456789abc\n")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    Marks(folder).bound_log("0a-0")
    assert log.read_text() == ""
    assert older.read_text() == "456789abc\n"
    assert stat.S_IMODE(older.stat().st_mode) == 0o600
    (folder / "go").write_text("on\n")
    eventually(lambda: log.read_text() == "end\n")
    Marks(folder).bound_log("0a-0")
    assert Marks(folder).log_tail("0a-0") == "end", "a short log stays"
    Marks(folder).bound_log("none")
