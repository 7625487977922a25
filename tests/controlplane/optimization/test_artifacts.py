"""Artifacts: whole or not at all, once per content, until nothing needs them."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.artifacts.store.local import LocalStore
from controlplane.catalog.models import BaseModel, Variant
from controlplane.catalog.services import variant_remove
from controlplane.errors import ConflictError, RefusedError, UnavailableError
from controlplane.optimization.artifacts import artifact_keep, artifacts_collect
from controlplane.optimization.claims import Claim
from controlplane.optimization.comparisons import comparison_create
from controlplane.optimization.housekeeping import leftovers_collect
from controlplane.optimization.models import Artifact, OptimizationJob
from controlplane.optimization.results import job_keep
from controlplane.optimization.services import job_remove, work_cancel
from controlplane.optimization.workspace import work_folder
from tests.controlplane.optimization.conftest import Ask

pytestmark = pytest.mark.django_db


def output(folder: Path, *, digest: str = "ab" * 32, sha256: str = "") -> Path:
    """A whole output of one file."""
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    data = b"weights" * 1000
    (folder / "checkpoint" / "model.safetensors").write_bytes(data)
    files = {"checkpoint/model.safetensors": [len(data), sha256 or hashlib.sha256(data).hexdigest()]}
    lineage = {"digest": digest, "files": files, "identity": {}, "serve": {"model": "checkpoint"}}
    (folder / "lineage.json").write_text(json.dumps(lineage))
    return folder


def claimed(job: OptimizationJob) -> Claim:
    claim = Claim.take(kind="job", pk=job.pk)
    assert claim is not None
    claim.write(status="running")
    return claim


def stored(tmp_path: Path) -> list[str]:
    root = tmp_path / "artifacts"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def no_heartbeat() -> None:
    """A heartbeat that does nothing."""


def old() -> None:
    Artifact.objects.update(needed_at=timezone.now() - timedelta(hours=2))


def test_a_store_that_fails_half_way_registers_nothing_and_the_next_attempt_finishes(
    tiny_base: BaseModel, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ask(tiny_base)
    folder = work_folder(job)
    output(folder / "output")
    claim = claimed(job)
    with monkeypatch.context() as patch:
        put = LocalStore.put

        def fails(store: LocalStore, key: str, *args: object, **more: object) -> int:
            if key.endswith("lineage.json"):
                raise UnavailableError("the store is away")
            return put(store, key, *args, **more)  # type: ignore[arg-type]

        patch.setattr(LocalStore, "put", fails)
        with pytest.raises(UnavailableError):
            job_keep(claim, folder, {}, heartbeat=no_heartbeat)
    assert (Variant.objects.count(), Artifact.objects.get().state) == (0, "storing")
    # The failed attempt left half a file under the same name.
    (left,) = (tmp_path / "artifacts").rglob("model.safetensors")
    left.write_bytes(b"half")
    job_keep(claim, folder, {"digest": "ab" * 32}, heartbeat=no_heartbeat)
    job.refresh_from_db()
    assert (job.status, Artifact.objects.get().state, job.result) == ("done", "stored", {"digest": "ab" * 32})
    assert left.read_bytes() == b"weights" * 1000


def test_a_file_that_is_not_what_was_written_is_refused(tiny_base: BaseModel, ask: Ask) -> None:
    job = ask(tiny_base)
    output(work_folder(job) / "output", sha256="00" * 32)
    with pytest.raises(RefusedError, match="is not what was written"):
        job_keep(claimed(job), work_folder(job), {}, heartbeat=no_heartbeat)
    assert not Variant.objects.exists()


def test_the_same_content_is_stored_once(tiny_base: BaseModel, ask: Ask, tmp_path: Path) -> None:
    jobs = [ask(tiny_base, {"quantization": name}) for name in ("int8", "awq_int4_g64")]
    for job in jobs:
        output(work_folder(job) / "output")
        job_keep(claimed(job), work_folder(job), {}, heartbeat=no_heartbeat)
    assert (Artifact.objects.count(), Variant.objects.count()) == (1, 2)
    assert len(stored(tmp_path)) == 2


def test_while_one_stores_another_waits(tiny_base: BaseModel, ask: Ask) -> None:
    first, second = (ask(tiny_base, {"quantization": name}) for name in ("int8", "awq_int4_g64"))
    Artifact.objects.create(pk="ab" * 32, uri="file:///x/", size=1, files={})
    OptimizationJob.objects.filter(pk=first.pk).update(artifact_id="ab" * 32, status="running")
    output(work_folder(second) / "output")
    with pytest.raises(UnavailableError, match=f"optimization {first.pk} is storing the same files"):
        artifact_keep(claimed(second), work_folder(second) / "output", heartbeat=no_heartbeat)
    OptimizationJob.objects.filter(pk=first.pk).update(status="failed")
    Artifact.objects.update(state="removing")
    with pytest.raises(UnavailableError, match="just being removed"):
        artifact_keep(claimed_again(second), work_folder(second) / "output", heartbeat=no_heartbeat)


def claimed_again(job: OptimizationJob) -> Claim:
    OptimizationJob.objects.filter(pk=job.pk).update(lease_owner="")
    return claimed(job)


def test_files_stay_as_long_as_something_needs_them(tiny_base: BaseModel, ask: Ask, tmp_path: Path) -> None:
    job = ask(tiny_base)
    output(work_folder(job) / "output")
    job_keep(claimed(job), work_folder(job), {}, heartbeat=no_heartbeat)
    old()
    assert artifacts_collect() == 0
    job.refresh_from_db()
    assert job.variant is not None
    variant_remove(variant=job.variant)
    old()
    assert artifacts_collect() == 0, "the job may be deployed again"
    job.refresh_from_db()
    old()
    job_remove(job=job)
    assert artifacts_collect() == 0, "not at once"
    old()
    assert artifacts_collect() == 1
    assert stored(tmp_path) == []
    assert not Artifact.objects.exists()


def test_a_variant_that_is_being_measured_stays(tiny_base: BaseModel, ask: Ask) -> None:
    job = ask(tiny_base)
    output(work_folder(job) / "output")
    job_keep(claimed(job), work_folder(job), {}, heartbeat=no_heartbeat)
    job.refresh_from_db()
    assert job.variant is not None
    run, _ = comparison_create(base_model=tiny_base, arms=[{"variant": ""}, {"variant": job.variant.name}])
    with pytest.raises(ConflictError, match=f"is being measured by comparison {run.pk}"):
        job_remove(job=job)
    work_cancel(work=run)
    job_remove(job=job)
    assert not Variant.objects.exists()


def test_what_a_failed_job_had_begun_to_store_goes(tiny_base: BaseModel, ask: Ask, tmp_path: Path) -> None:
    job = ask(tiny_base)
    output(work_folder(job) / "output")
    artifact_keep(claimed(job), work_folder(job) / "output", heartbeat=no_heartbeat)
    old()
    assert artifacts_collect() == 0, "it goes on"
    OptimizationJob.objects.update(status="failed", lease_owner="", ended_at=timezone.now())
    old()
    assert artifacts_collect() == 1
    assert stored(tmp_path) == []
    job.refresh_from_db()
    assert job.artifact is None


def test_folders_of_ended_jobs_go_and_those_that_may_be_resumed_stay(tiny_base: BaseModel, ask: Ask) -> None:
    job = ask(tiny_base)
    output(work_folder(job) / "output")
    assert leftovers_collect() == 0
    OptimizationJob.objects.update(status="cancelled", ended_at=timezone.now())
    assert leftovers_collect() == 0, "asked for again, it goes on"
    OptimizationJob.objects.update(ended_at=timezone.now() - timedelta(days=8))
    again = ask(tiny_base)
    assert work_folder(again) == work_folder(job)
    assert leftovers_collect() == 0, "another job is at it"
    jobs = OptimizationJob.objects.filter(pk=again.pk)
    jobs.update(status="failed", ended_at=timezone.now())
    assert leftovers_collect() == 0, "that one may be asked for again"
    jobs.update(status="done")
    assert leftovers_collect() == 1
    assert not work_folder(job).exists()


def test_a_store_that_does_not_answer_keeps_no_other_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    for name in ("aa", "bb"):
        Artifact.objects.create(pk=name * 32, uri="file:///x/", size=1, files={}, state="stored")
    old()
    remove = LocalStore.remove

    def fails(store: LocalStore, key: str) -> None:
        if "aa" in key:
            raise UnavailableError("the store is away")
        remove(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", fails)
        assert artifacts_collect() == 1
    assert [artifact.pk for artifact in Artifact.objects.all()] == ["aa" * 32]
    assert artifacts_collect() == 1, "the next time it is tried again"
