"""An optimization job's variant on real workers: tried by some callers, rolled back, under one name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from controlplane.adapters.aliases import alias_move
from controlplane.catalog.models import BaseModel
from controlplane.deployments.models import Deployment
from controlplane.deployments.rollouts.services import deployment_rollout_abort
from controlplane.optimization.attempt import work_run
from controlplane.optimization.deploying import job_deploy
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.services import job_create
from tests.controlplane.deployments.conftest import Register, drive
from tests.controlplane.deployments.test_canaries import ask, known_everywhere, load, pair, tries
from tests.controlplane.deployments.test_local import ENVIRONMENT, wait, workers
from tests.controlplane.deployments.test_placing import Load
from tests.controlplane.deployments.test_rollouts import AT_ONCE, Status, ended

__all__ = ["load", "pair"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_workers")]
POLICY = AT_ONCE | {"wait_seconds": 600, "shares": [50]}


@pytest.mark.costly("optimizes a model, and starts several workers")
@pytest.mark.parametrize(
    "recipe",
    [
        {"quantization": "int8"},
        pytest.param({"compilation": {"ahead_of_time": True}}, marks=pytest.mark.slow),
    ],
    ids=["int8", "compiled"],
)
@pytest.mark.timeout(900)
def test_a_variant_is_tried_and_taken_back_and_no_name_changes(
    pair: Deployment,
    tiny: BaseModel,
    register: Register,
    load: Load,
    local_root: Path,
    settings: Settings,
    tmp_path: Path,
    recipe: dict[str, Any],
) -> None:
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, optimization_dir=tmp_path / "optimization")
    adapter = register("plain", "bot").adapter
    alias_move(adapter=adapter, name="prod", number=1)
    job, _ = job_create(base_model=tiny, recipe=recipe_read(recipe))
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    assert job.variant is not None, (job.reason, job.log_tail)

    rollout = job_deploy(job=job, deployment=pair, policy=POLICY)
    assert rollout.strategy == "canary"
    drive(pair, tries(tiny, 50), pause=wait)
    known_everywhere(load)
    models = {item.option("--model") for item in workers(local_root)}
    assert models == {tiny.source, job.variant.source}
    (new,) = (item for item in workers(local_root) if item.option("--model") == job.variant.source)
    assert new.option("--served-model-name") == "tiny"
    if "compilation" in recipe:
        variables = Path(f"/proc/{new.pid}/environ").read_bytes().decode().split("\0")
        assert f"GRAFTWORK_WORKER_CACHE_DIR={Path(job.variant.source).parent / 'compiled'}" in variables
    for name in ("tiny-base", "bot", "bot@prod"):
        assert set(ask(load, name)) == {200}, name

    deployment_rollout_abort(rollout=rollout)
    drive(pair, ended(rollout, Status.ABORTED), pause=wait)
    assert {item.option("--model") for item in workers(local_root)} == {tiny.source}
    assert (pair.variant, pair.environment) == ("", ENVIRONMENT)
    assert set(ask(load, "bot@prod")) == {200}
