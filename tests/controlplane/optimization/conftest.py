"""The demo model as a base whose digests are taken, and a host's folder for optimization."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from django.apps import apps
from pytest_django import Settings

from contracts.recipes.bundled_prompts import BUNDLED, BundledName
from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.deployments.models import Target
from controlplane.deployments.targets.services import target_create
from controlplane.optimization.bundled_sets import add_bundled_sets
from controlplane.optimization.models import OptimizationJob, PromptSet
from controlplane.optimization.prompt_sets import prompts_create
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.services import job_create
from tests.sagemaker_local.stand import BUCKET, KEY, REGION, ROLE, Stand, run_stand

COPY: Mapping[str, Any] = {"speculation": {"method": "ngram"}}
"""The smallest recipe there is: the weights as they are, served with speculation."""


@pytest.fixture(autouse=True)
def optimization_dir(settings: Settings, graftwork: Path, tmp_path: Path) -> Path:
    """A folder for the jobs of one host."""
    folder = tmp_path / "optimization"
    settings.GRAFTWORK = dataclasses.replace(settings.GRAFTWORK, optimization_dir=folder)
    return folder


@pytest.fixture
def demo_base(db: None, demo_model: Path) -> BaseModel:
    """The demo model, its files' digests taken."""
    base = base_model_register(name="demo", source=demo_model)
    digest_run(base_model_id=base.pk)
    base.refresh_from_db()
    return base


@pytest.fixture
def tiny_base(base_model: BaseModel) -> BaseModel:
    """The small base, its files' digests taken. No worker serves it."""
    digest_run(base_model_id=base_model.pk)
    base_model.refresh_from_db()
    return base_model


Ask = Callable[..., OptimizationJob]


@pytest.fixture
def ask(db: None) -> Ask:
    """Asks for a job of COPY, or of another recipe."""

    def create_job(
        base: BaseModel, recipe: Mapping[str, Any] = COPY, prompts: PromptSet | None = None, variant: str = ""
    ) -> OptimizationJob:
        job, _ = job_create(base_model=base, recipe=recipe_read(recipe), prompts=prompts, variant=variant)
        return job

    return create_job


def prompt_lines(*texts: str) -> BytesIO:
    """A JSONL file of texts."""
    return BytesIO("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())


@pytest.fixture
def prompts(db: None) -> PromptSet:
    """Twenty texts."""
    return prompts_create(stream=prompt_lines(*[f"text {number}" for number in range(20)]), name="twenty")


@pytest.fixture
def bundled(db: None) -> PromptSet:
    """The question answering set, as the migration adds it."""
    add_bundled_sets(cast(Any, apps), cast(Any, None))
    return PromptSet.objects.get(pk=BUNDLED[BundledName.QUESTION_ANSWERING].sha256)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The local SageMaker, its clock standing still."""
    with run_stand(
        tmp_path_factory.mktemp("stand"), durations={"job": 100.0}, clock_running=False
    ) as running:
        running.client("s3").create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield running


@pytest.fixture
def target(db: None, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Target:
    """An account there, and our credentials for it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY["secret_key"])
    return target_create(
        name="aws",
        kind="sagemaker",
        region=REGION,
        endpoint_url=stand.url,
        role_arn=ROLE,
        store=f"s3://{BUCKET}/graft",
    )
