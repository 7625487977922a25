"""The demo model as a base whose digests are taken, and a host's folder for optimization."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from controlplane.catalog.digests import digest_run
from controlplane.catalog.models import BaseModel
from controlplane.catalog.services import base_model_register
from controlplane.optimization.models import OptimizationJob, PromptSet
from controlplane.optimization.prompt_sets import prompts_create
from controlplane.optimization.recipes import recipe_read
from controlplane.optimization.services import job_create

COPY: Mapping[str, Any] = {"speculation": {"method": "ngram"}}
"""The smallest recipe there is: the weights as they are, served with speculation."""


@pytest.fixture(autouse=True)
def optimization_dir(settings: Settings, graftwork: Path, tmp_path: Path) -> Path:
    """A host's folder of its own."""
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

    def asked(
        base: BaseModel, recipe: Mapping[str, Any] = COPY, prompts: PromptSet | None = None, variant: str = ""
    ) -> OptimizationJob:
        job, _ = job_create(base_model=base, recipe=recipe_read(recipe), prompts=prompts, variant=variant)
        return job

    return asked


def prompt_lines(*texts: str) -> BytesIO:
    """A JSONL file of texts."""
    return BytesIO("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())


@pytest.fixture
def prompts(db: None) -> PromptSet:
    """Twenty texts."""
    return prompts_create(stream=prompt_lines(*[f"text {number}" for number in range(20)]), name="twenty")
