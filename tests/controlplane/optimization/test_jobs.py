"""Jobs with the real subprocess, on the demo model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from controlplane.catalog.models import BaseModel, Variant
from controlplane.optimization.attempt import work_run
from controlplane.optimization.models import Artifact, Attempt, OptimizationJob
from controlplane.optimization.selectors import event_list
from controlplane.platform.audit.models import AuditRecord
from tests.controlplane.optimization.conftest import Ask

pytestmark = pytest.mark.django_db


def finished(job: OptimizationJob) -> OptimizationJob:
    work_run(kind="job", pk=job.pk)
    job.refresh_from_db()
    return job


@pytest.mark.costly("starts an optimizer")
def test_a_job_becomes_a_variant_with_its_lineage(demo_base: BaseModel, ask: Ask, tmp_path: Path) -> None:
    job = finished(ask(demo_base, variant="copy"))
    assert (job.status, job.reason, job.percent, job.attempts) == ("done", "variant copy of demo", 100.0, 1)
    variant = Variant.objects.get(base_model=demo_base, name="copy")
    assert job.variant == variant
    folder = Path(variant.source)
    assert folder.parent == tmp_path / "artifacts" / "optimized" / str(job.artifact_id)
    made = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert made == demo_base.files.get(name="model.safetensors").sha256
    artifact = Artifact.objects.get()
    assert (artifact.state, artifact.files["checkpoint/model.safetensors"]) == ("stored", made)
    assert job.lineage["checkpoint_sha256"] == demo_base.checkpoint_sha256
    assert job.lineage["output"]["identity"]["recipe"] == job.recipe
    assert job.result is not None
    assert job.result["serve"]["flags"][:2] == ["--speculation", "ngram"]
    assert json.loads((folder.parent / "lineage.json").read_text())["digest"] == job.artifact_id
    assert [event.event for event in event_list(work=job)][::-1] == ["asked", "started", "done"]
    attempt = Attempt.objects.get()
    assert (attempt.subject, attempt.base_model, attempt.machine) == (f"job-{job.pk}.1", "demo", "cpu")
    assert attempt.ended_at is not None
    assert AuditRecord.objects.filter(action="optimizationjob.done").exists()
    assert "phase 4/4: verification" in job.log_tail


@pytest.mark.slow
def test_an_int8_variant_is_smaller_and_says_what_it_is(demo_base: BaseModel, ask: Ask) -> None:
    job = finished(ask(demo_base, {"quantization": "int8"}, variant="int8"))
    assert job.status == "done", (job.reason, job.log_tail)
    assert job.variant is not None
    assert (job.variant.quantization, job.variant.notes) == ("int8", f"by optimization {job.pk}")
    assert job.artifact is not None
    weights = demo_base.files.get(name="model.safetensors").size
    made = sum(path.stat().st_size for path in Path(job.variant.source).glob("*.safetensors"))
    assert made < 0.75 * weights
    config = json.loads((Path(job.variant.source) / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
