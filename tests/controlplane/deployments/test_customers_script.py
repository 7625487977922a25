"""A customer's own boto3 script and our control plane on one local SageMaker: neither disturbs the other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.base_routes import adapter_component
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import deployment_remove
from tests.conftest import ROOT
from tests.controlplane.deployments.account import NOTHING, deploy, resources
from tests.controlplane.deployments.conftest import Register, drive, removed
from tests.controlplane.deployments.test_sagemaker import credentials, pause, placed, stand  # noqa: F401
from tests.sagemaker_local.stand import KEY, REGION, Stand

pytestmark = [pytest.mark.slow, pytest.mark.django_db]
DOCS = ROOT / "docs" / "sagemaker-local.md"
SCRIPT = Path(__file__).with_name("customers_script.py")
THEIRS = ["resume-parser-base", "resume-parser-match", "resume-parser-ru"]
Run = Callable[..., Any]


@pytest.fixture
def customer(
    stand: Stand,  # noqa: F811
    tiny_model: Path,
    tiny_adapters: dict[str, Path],
    tmp_path: Path,
) -> Run:
    """Runs a step of the script, or the code given, in a folder with no code of ours."""
    shutil.copytree(tiny_model, tmp_path / "model")
    for name, which in (("es", "plain"), ("fr", "all"), ("ru", "patterns")):
        shutil.copytree(tiny_adapters[which], tmp_path / "adapters" / name)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH",)}
    environ |= {
        "AWS_ENDPOINT_URL": stand.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": KEY["access_key"],
        "AWS_SECRET_ACCESS_KEY": KEY["secret_key"],
    }
    shutil.copy(SCRIPT, tmp_path)

    def run(step: str, *names: str, code: str = "") -> Any:
        arguments = ["-c", code] if code else [SCRIPT.name, step, str(tmp_path), *names]
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return None if code else json.loads(done.stdout)

    return run


@pytest.mark.costly("runs a customer's script against the local SageMaker")
def test_a_customers_script_and_the_control_plane_leave_each_others_things_alone(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
    customer: Run,
) -> None:
    assert customer("up") == dict.fromkeys(THEIRS, "InService")
    theirs, answers = resources(stand), customer("ask")
    assert len({json.dumps(answer) for answer in answers.values()}) == 4, answers
    assert answers["match"] == answers["fr"], "two bases with the same archive on one endpoint"
    es, fr, base = answers["es"], answers["fr"], answers["base"]
    assert customer("lists") == {"es": [es], "several": [es, fr, base], "one for all": [fr, fr]}

    # A deployment into the customer's endpoint would be a take-over.
    intruder = deploy(stand, tiny, "intruder", hosting="fused", endpoint="resume-parser")
    deployment_reconcile(deployment_id=intruder.pk)
    intruder.refresh_from_db()
    assert intruder.status == Deployment.Status.FAILED
    assert "was not made by this installation" in intruder.reason
    deployment_remove(deployment=intruder)
    drive(intruder, removed, pause=pause)
    assert resources(stand) == theirs

    version = register("plain")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    ours = adapter_component("gw-tiny", version.engine_name)
    of_base, of_adapter = stand.ask("gw-tiny", "gw-tiny"), stand.ask("gw-tiny", ours)
    assert of_base != of_adapter
    assert customer("ask") == answers

    tags = customer("seen")
    assert {name for name, of in tags.items() if "graftwork:deployment" in of} == {"gw-tiny", ours}
    assert {name for name, of in tags.items() if not of} == set(THEIRS)

    customer("down")
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert placed(deployment)
    assert (stand.ask("gw-tiny", "gw-tiny"), stand.ask("gw-tiny", ours)) == (of_base, of_adapter)
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    assert resources(stand) == NOTHING


@pytest.mark.costly("runs a customer's script against the local SageMaker")
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
    assert sorted(resources(stand)["components"]) == THEIRS
    assert customer("ask") == answers
    customer("down")
    assert resources(stand) == NOTHING


@pytest.mark.costly("runs a customer's script against the local SageMaker")
def test_what_a_customer_changes_is_his_affair_or_is_seen_and_mended(
    stand: Stand,  # noqa: F811
    tiny: BaseModel,
    register: Register,
    customer: Run,
) -> None:
    customer("up")
    version = register("plain")
    deployment = drive(deploy(stand, tiny), placed, pause=pause)
    ours = adapter_component("gw-tiny", version.engine_name)
    of_adapter, answers = stand.ask("gw-tiny", ours), customer("ask")

    # Other files for his adapter; a copy more of his base, for which there is room on one instance more.
    assert customer("swap", "resume-parser-ru", "fr") == "InService"
    assert customer("scale", "resume-parser-base", "2") == {"copies": 2, "instances": 2}
    changed = customer("ask")
    assert changed == answers | {"ru": answers["fr"]}
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert placed(deployment)
    assert not deployment.steps.filter(action="drift").exists()
    assert customer("ask") == changed

    # The same of the control plane's own, in the same account and by the same calls.
    assert customer("scale", "gw-tiny", "2")["copies"] == 2
    assert customer("swap", ours, "fr") == "InService"
    assert stand.ask("gw-tiny", ours) != of_adapter

    def mended(row: Deployment) -> bool:
        desired = stand.settled("gw-tiny")["RuntimeConfig"]["DesiredCopyCount"]
        return placed(row) and desired == 1 and bool(stand.ask("gw-tiny", ours) == of_adapter)

    drive(deployment, mended, pause=pause)
    causes = {step.cause for step in deployment.steps.filter(action="drift")}
    assert "gw-tiny has 2 copies, not 1" in causes
    assert any("another archive" in cause for cause in causes), causes

    # Run the documentation's example as printed: the adapter's first files, and one copy.
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    customer("", code=example)
    stand.settled("resume-parser-ru")
    assert stand.settled("resume-parser-base")["RuntimeConfig"]["DesiredCopyCount"] == 1
    assert customer("ask") == answers
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=pause)
    customer("down")
    assert resources(stand) == NOTHING
