"""Attempts that die, hang, wake up late or meet another: a version is settled once, and nothing stays."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from django.db import DataError, connection
from django.utils import timezone

from controlplane.adapters import attempt
from controlplane.adapters.lifecycle import adapter_delete, adapter_purge, adapter_restore
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.services import adapter_register
from controlplane.adapters.validation import validation_resume, version_validate
from controlplane.artifacts.store.local import LocalStore
from controlplane.catalog.models import BaseModel
from controlplane.errors import UnavailableError
from controlplane.routes.selectors import route_table
from controlplane.tenants.models import Tenant
from tests.controlplane.conftest import adapter_files

pytestmark = pytest.mark.django_db(transaction=True)
Copy = Callable[..., None]


@pytest.fixture
def version(tenant: Tenant, base_model: BaseModel) -> AdapterVersion:
    files = {name: BytesIO(data) for name, data in adapter_files().items()}
    return adapter_register(tenant=tenant, name="pirate", base_model=base_model, files=files)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def around_copy(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[], None], after: Callable[[], None]
) -> None:
    real: Copy = LocalStore.copy

    def copy(self: LocalStore, source: str, target: str, *, progress: Callable[[], None]) -> None:
        before()
        real(self, source, target, progress=progress)
        after()

    monkeypatch.setattr(LocalStore, "copy", copy)


def die() -> None:
    raise MemoryError("killed here")


def nothing() -> None:
    """Lets it pass."""


def test_the_copy_into_the_store_holds_no_lock(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    around_copy(monkeypatch, lambda: seen.append(connection.in_atomic_block), nothing)
    version_validate(version_id=version.pk)
    assert seen == [False]


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_attempt_that_dies_around_the_copy_is_made_good_by_the_next(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    with monkeypatch.context() as patch:
        around_copy(patch, *((die, nothing) if where == "before" else (nothing, die)))
        with pytest.raises(MemoryError):
            version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "pending"
    assert "acme" not in route_table().adapters
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.attempts, version.staging) == ("ready", 2, "")
    assert {name.split("/")[1] for name in files_in(tmp_path / "artifacts")} == {version.sha256}


def test_an_attempt_taken_for_dead_changes_nothing_when_it_wakes(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep_through_another_attempt() -> None:
        monkeypatch.undo()
        old = timezone.now() - dt.timedelta(minutes=3)
        AdapterVersion.objects.filter(pk=version.pk).update(heartbeat_at=old, created_at=old)
        validation_resume()
        version_validate(version_id=version.pk)

    around_copy(monkeypatch, nothing, sleep_through_another_attempt)
    version_validate(version_id=version.pk)
    before = route_table().version
    version.refresh_from_db()
    assert (version.status, version.attempts) == ("ready", 2)
    assert {step["status"] for step in version.steps} == {"done", "skipped"}
    assert route_table().version == before


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_adapter_purged_during_validation_stays_away(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    def purge() -> None:
        adapter_delete(adapter=version.adapter)
        adapter_purge(adapter=version.adapter)

    around_copy(monkeypatch, *((purge, nothing) if where == "before" else (nothing, purge)))
    if where == "before":
        with pytest.raises(FileNotFoundError):
            version_validate(version_id=version.pk)
    else:
        version_validate(version_id=version.pk)
    assert not AdapterVersion.objects.exists()
    assert route_table().adapters.get("acme", {}) == {}
    assert files_in(tmp_path / "artifacts") == []


def test_an_adapter_deleted_during_validation_is_ready_once_restored(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    around_copy(monkeypatch, nothing, lambda: adapter_delete(adapter=version.adapter))
    version_validate(version_id=version.pk)
    assert route_table().adapters.get("acme", {}) == {}
    adapter_restore(adapter=Adapter.objects.get())
    assert set(route_table().adapters["acme"]["pirate"].versions) == {1}


def test_a_store_that_does_not_answer_costs_no_attempts_until_a_day_has_passed(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> int:
        raise UnavailableError("the store is away")

    monkeypatch.setattr(LocalStore, "size", away)
    for _ in range(7):
        version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "pending"
    assert "the store is away; validation will be retried" in [step["detail"] for step in version.steps]
    AdapterVersion.objects.filter(pk=version.pk).update(created_at=timezone.now() - dt.timedelta(days=2))
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "refused"
    assert "the store is away; this lasted for a day" in version.reason


def test_weights_beyond_the_limit_of_their_base_are_refused_unread(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "max_adapter_bytes", lambda *_: 100)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "refused"
    assert "at most 100 are accepted for this base model" in version.reason
    assert [step["status"] for step in version.steps if step["name"] == "header"] == ["waiting"]


def test_an_internal_error_is_tried_five_times(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "check_tensors", lambda *_, **__: die())
    for _ in range(5):
        with pytest.raises(MemoryError):
            version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.attempts) == ("refused", 5)
    assert "failed 5 times with an internal error" in version.reason
    assert "killed here" not in version.reason


def test_an_error_that_every_attempt_meets_is_tried_once(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unstorable(*_: object, **__: object) -> None:
        raise DataError("invalid input syntax for type json")

    monkeypatch.setattr(attempt, "check_tensors", unstorable)
    with pytest.raises(DataError):
        version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.attempts) == ("refused", 1)
    assert "cannot be stored" in version.reason
    assert "syntax" not in version.reason


def test_staged_files_that_a_dead_worker_left_are_swept(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", lambda *_: die())
        with pytest.raises(MemoryError):
            version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert version.status == "ready"
    assert any(name.startswith("incoming/") for name in files_in(tmp_path / "artifacts"))
    AdapterVersion.objects.update(heartbeat_at=timezone.now() - dt.timedelta(minutes=3))
    assert validation_resume() == 0
    assert not any(name.startswith("incoming/") for name in files_in(tmp_path / "artifacts"))
    version.refresh_from_db()
    assert (version.status, version.staging) == ("ready", "")


def test_an_attempt_that_wakes_while_another_runs_leaves_it_the_version(
    version: AdapterVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_claims() -> None:
        AdapterVersion.objects.update(attempts=2)

    around_copy(monkeypatch, nothing, another_claims)
    version_validate(version_id=version.pk)
    version.refresh_from_db()
    assert (version.status, version.uri) == ("validating", "")
    assert "acme" not in route_table().adapters
