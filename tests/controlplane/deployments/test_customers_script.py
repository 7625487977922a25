"""A customer's own boto3 script and our control plane on one local SageMaker: neither disturbs the other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.catalog.models import BaseModel
from controlplane.deployments.lifecycle import deployment_remove
from controlplane.deployments.models import Deployment
from controlplane.deployments.reconciler import deployment_reconcile
from gateway.wire import adapter_component
from tests.controlplane.deployments.conftest import Register, drive, removed
from tests.controlplane.deployments.test_sagemaker import (  # noqa: F401
    NOTHING,
    credentials,
    deploy,
    pause,
    placed,
    stand,
    there,
)
from tests.sagemaker_local.stand import KEY, REGION, Stand
from tests.worker_engine.conftest import tiny_adapters, tiny_model  # noqa: F401

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]
SCRIPT = Path(__file__).with_name("customers_script.py")
Run = Callable[[str], Any]


@pytest.fixture
def customer(
    stand: Stand,  # noqa: F811
    tiny_model: Path,  # noqa: F811
    tiny_adapters: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> Run:
    """Runs a step of the script in a folder with no code of ours."""
    shutil.copytree(tiny_model, tmp_path / "model")
    for name, which in (("es", "plain"), ("fr", "all"), ("ru", "rslora")):
        shutil.copytree(tiny_adapters[which], tmp_path / "adapters" / name)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH",)}
    environ |= {
        "AWS_ENDPOINT_URL": stand.url, "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY["access_key"], "AWS_SECRET_ACCESS_KEY": KEY["secret_key"],
    }  # fmt: skip
    shutil.copy(SCRIPT, tmp_path)

    def run(step: str) -> Any:
        command = [sys.executable, SCRIPT.name, step, str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_customers_script_and_the_control_plane_leave_each_others_things_alone(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
    customer: Run,
) -> None:
    assert customer("up") == {"resume-parser-base": "InService", "resume-parser-ru": "InService"}
    theirs, answers = there(stand), customer("ask")
    assert len({json.dumps(answer) for answer in answers.values()}) == 4, answers

    # A deployment into the customer's endpoint would be a take-over.
    intruder = deploy(stand, tiny, "intruder", hosting="fused", endpoint="resume-parser")
    deployment_reconcile(deployment_id=intruder.pk)
    intruder.refresh_from_db()
    assert intruder.status == Deployment.Status.FAILED
    assert "was not made by this installation" in intruder.reason
    deployment_remove(deployment=intruder)
    drive(intruder, removed, pause=pause)
    assert there(stand) == theirs

    version = register("plain")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    ours = adapter_component("gw-tiny", version.engine_name)
    of_base, of_adapter = stand.ask("gw-tiny", "gw-tiny"), stand.ask("gw-tiny", ours)
    assert of_base != of_adapter
    assert customer("ask") == answers

    tags = customer("seen")
    assert {name for name, of in tags.items() if "graftwork:deployment" in of} == {"gw-tiny", ours}
    assert {name for name, of in tags.items() if not of} == {"resume-parser-base", "resume-parser-ru"}

    customer("down")
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert placed(deployment)
    assert (stand.ask("gw-tiny", "gw-tiny"), stand.ask("gw-tiny", ours)) == (of_base, of_adapter)
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert there(stand) == NOTHING


def test_what_the_control_plane_removes_takes_nothing_of_the_customers(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
    customer: Run,
) -> None:
    register("plain")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    customer("up")
    answers = customer("ask")
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert sorted(there(stand)["components"]) == ["resume-parser-base", "resume-parser-ru"]
    assert customer("ask") == answers
    customer("down")
    assert there(stand) == NOTHING
