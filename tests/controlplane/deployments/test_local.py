"""Worker processes of this host: started, found again after a death at any step, drained, ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from contracts.base_routes import BaseRoute
from controlplane.catalog.models import BaseModel
from controlplane.deployments.copies.endpoints import PATIENCE
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.local.processes import Process, end, processes
from controlplane.deployments.reconciler import deployment_reconcile
from controlplane.deployments.services import (
    deployment_create,
    deployment_remove,
    deployment_retry,
    deployment_update,
)
from controlplane.deployments.targets.services import target_create
from controlplane.routes.models import RouteEntryRow
from tests.controlplane.deployments.conftest import TOKEN, drive, orphan, removed, serving
from tests.controlplane.deployments.dying import KilledError, dying_after
from tests.waiting import eventually

pytestmark = [pytest.mark.django_db, pytest.mark.costly("starts workers")]
ENVIRONMENT = {"GRAFTWORK_WORKER_FLAG_MEMORY_GIB": "0.02", "GRAFTWORK_WORKER_FLAG_NUM_THREADS": "1"}


def workers(root: Path) -> list[Process]:
    return [item for item in processes() if str(root) in item.option("--adapter-cache-dir")]


def wait() -> None:
    time.sleep(0.3)  # A worker starts or ends meanwhile.


def deploy(base: BaseModel, **values: Any) -> Deployment:
    target = Target.objects.filter(name="here").first() or target_create(name="here", kind="local")
    wanted: dict[str, Any] = {"min_copies": 1, "max_copies": 4, "environment": ENVIRONMENT} | values
    return deployment_create(name="tiny", target=target, base_model=base, **wanted)


def published(base: BaseModel) -> set[str]:
    entry = BaseRoute.from_dict(RouteEntryRow.objects.get(path=f"bases/{base.name}").entry)
    return {copy.url for copy in entry.copies}


def test_a_killed_reconciler_leaves_nothing_twice(tiny: BaseModel, local_root: Path) -> None:
    deployment = deploy(tiny, min_copies=2)
    for calls in (1, 1):  # after the first worker, then after the second
        with pytest.raises(KilledError):
            deployment_reconcile(deployment_id=deployment.pk, make=dying_after(calls))
        orphan(deployment)
    assert deployment.steps.filter(action="start_worker").count() == 0, "it died before it could say so"
    assert len(workers(local_root)) == 2
    drive(deployment, serving, pause=wait)
    assert len(workers(local_root)) == 2, "the next one found both, and started none"
    assert deployment.copies.count() == len(published(tiny)) == 2

    deployment_remove(deployment=deployment)
    with pytest.raises(KilledError):
        drive(deployment, removed, make=dying_after(1))
    orphan(deployment)
    assert published(tiny) == set(), "routes go before what they lead to"
    drive(deployment, removed, pause=wait)
    assert workers(local_root) == []
    assert deployment.status == Deployment.Status.REMOVED


def test_a_worker_that_was_killed_is_replaced(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    (before,) = workers(local_root)
    os.kill(before.pid, signal.SIGKILL)
    drive(
        deployment,
        lambda row: bool(workers(local_root)) and workers(local_root)[0].pid != before.pid,
        pause=wait,
    )
    drive(deployment, serving, pause=wait)
    (after,) = workers(local_root)
    assert published(tiny) == {f"http://127.0.0.1:{after.option('--port')}"}
    assert deployment.steps.filter(action="start_worker").count() == 2


@pytest.mark.usefixtures("cold_worker_start")
def test_a_worker_that_is_too_busy_to_answer_goes_on_serving_for_a_while(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    (worker,) = workers(local_root)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        for _ in range(2):
            deployment_reconcile(deployment_id=deployment.pk)
            assert len(published(tiny)) == 1, "it is there, and may be serving"
        deployment.refresh_from_db()
        assert deployment.status == Deployment.Status.DEGRADED
        assert deployment.next_at < timezone.now() + timedelta(seconds=10)
        deployment.copies.update(silent_since=timezone.now() - PATIENCE)
        deployment_reconcile(deployment_id=deployment.pk)
        assert published(tiny) == set(), "a hung one leaves in the end"
        assert [item.pid for item in workers(local_root)] == [worker.pid]
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    drive(deployment, serving, pause=wait)
    assert published(tiny) == {f"http://127.0.0.1:{worker.option('--port')}"}
    assert deployment.copies.get().silent_since is None


def test_a_change_serves_on_the_old_copy_until_the_new_one_does(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    old = published(tiny)
    deployment_update(deployment=deployment, options={"max_rolling_batch_size": 8})
    served = set()

    def settled(row: Deployment) -> bool:
        served.add(frozenset(published(tiny)))
        return serving(row) and row.observed_generation == row.generation

    drive(deployment, settled, pause=wait)
    (left,) = workers(local_root)
    assert left.option("--max-num-seqs") == "8"
    new = frozenset(published(tiny))
    assert new == {f"http://127.0.0.1:{left.option('--port')}"} != frozenset(old)
    assert served == {frozenset(old), new}, "at no moment was there none"


def test_another_host_leaves_it_to_the_right_one(tiny: BaseModel, local_root: Path) -> None:
    target_create(name="here", kind="local", host="elsewhere")
    deployment = deploy(tiny)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert "not the target elsewhere: run a Celery worker there" in deployment.reason
    assert workers(local_root) == []


@pytest.mark.parametrize("source", ["s3://bucket/m/", "hf://owner/name@" + "a" * 40])
def test_a_checkpoint_that_is_no_folder_is_told(tiny: BaseModel, local_root: Path, source: str) -> None:
    BaseModel.objects.filter(pk=tiny.pk).update(source=source)
    deployment = deploy(tiny)
    deployment_reconcile(deployment_id=deployment.pk)
    deployment.refresh_from_db()
    assert deployment.status == Deployment.Status.FAILED
    assert "register it from a folder" in deployment.reason
    deployment_remove(deployment=deployment)
    drive(deployment, removed, rounds=3)


def test_one_that_cannot_start_is_told_with_its_log_and_waits_for_a_retry(
    tiny: BaseModel, local_root: Path
) -> None:
    deployment = deploy(tiny, environment={"GRAFTWORK_WORKER_FLAG_NO_SUCH": "1"})
    failed = Deployment.Status.FAILED
    drive(deployment, lambda row: row.status == failed, pause=wait)
    assert "copy 1 ended while it started" in deployment.reason
    assert "--no-such" in deployment.reason
    for _ in range(2):
        deployment_reconcile(deployment_id=deployment.pk)
    starts = deployment.steps.filter(action="start_worker")
    assert starts.count() == 1, "not again and again"
    deployment_retry(deployment=deployment)
    drive(deployment, lambda row: row.status == failed and starts.count() == 2, pause=wait)

    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=wait)
    assert not (local_root / "deployments" / "tiny").exists()


@pytest.mark.usefixtures("cold_worker_start")
def test_one_that_hangs_is_asked_to_end_once_and_then_ended(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    (worker,) = workers(local_root)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        deployment_remove(deployment=deployment)
        for _ in range(3):
            deployment_reconcile(deployment_id=deployment.pk)
        assert [item.pid for item in workers(local_root)] == [worker.pid]
        assert deployment.steps.filter(action="stop_worker").count() == 1
        (mark,) = (local_root / "deployments" / "tiny").glob("*.stopping")
        os.utime(mark, (time.time() - 61, time.time() - 61))
        drive(deployment, removed, pause=wait)
    finally:
        end(worker.pid, at_once=True)
    assert deployment.steps.filter(action="kill_worker").count() == 1
    assert not (local_root / "deployments" / "tiny").exists()


@pytest.mark.usefixtures("cold_worker_start")
def test_one_that_hangs_while_it_serves_is_replaced(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    (hung,) = workers(local_root)
    os.kill(hung.pid, signal.SIGSTOP)
    try:
        deployment_reconcile(deployment_id=deployment.pk)
        deployment.copies.update(silent_since=timezone.now() - PATIENCE)
        deployment_reconcile(deployment_id=deployment.pk)
        deployment_reconcile(deployment_id=deployment.pk)
        assert published(tiny) == set()
        assert not deployment.steps.filter(action="stop_worker").exists(), "it may come back"
        deployment.refresh_from_db()
        ((url, _),) = deployment.leaving.items()
        long_ago = (timezone.now() - timedelta(seconds=241)).isoformat()
        Deployment.objects.filter(pk=deployment.pk).update(leaving={url: long_ago})
        deployment_reconcile(deployment_id=deployment.pk)
        (step,) = deployment.steps.filter(action="stop_worker")
        assert step.cause == "it hangs: no response for minutes"
        (mark,) = (local_root / "deployments" / "tiny").glob("*.stopping")
        os.utime(mark, (time.time() - 61, time.time() - 61))
        drive(deployment, serving, pause=wait)
    finally:
        end(hung.pid, at_once=True)
    (fresh,) = workers(local_root)
    assert fresh.pid != hung.pid
    assert published(tiny) == {f"http://127.0.0.1:{fresh.option('--port')}"}


def test_one_that_ends_again_and_again_is_not_started_at_each_look(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    (folder,) = (path.parent for path in (local_root / "deployments" / "tiny").glob("*.ready"))
    name = next(folder.glob("*.ready")).stem
    (folder / f"{name}.crashes").write_text("1\n" * 9 + f"{time.time() - 100:.0f}\n" * 3)
    os.kill(workers(local_root)[0].pid, signal.SIGKILL)
    drive(deployment, lambda row: not serving(row), pause=wait)
    drive(deployment, serving, pause=wait)
    assert deployment.steps.filter(action="start_worker").count() == 2, "four of late; nine long ago"
    os.kill(workers(local_root)[0].pid, signal.SIGKILL)
    drive(deployment, lambda row: row.status == Deployment.Status.FAILED, pause=wait)
    assert "copy 1 ended 5 times in ten minutes: mend that and retry" in deployment.reason
    deployment_reconcile(deployment_id=deployment.pk)
    assert deployment.steps.filter(action="start_worker").count() == 2, "and waits"
    deployment_retry(deployment=deployment)
    drive(deployment, serving, pause=wait)
    assert deployment.steps.filter(action="start_worker").count() == 3


def test_one_that_is_ready_when_it_is_not_wanted_any_more_ends(tiny: BaseModel, local_root: Path) -> None:
    deployment = drive(deploy(tiny), serving, pause=wait)
    deployment_update(deployment=deployment, min_copies=2)
    deployment_reconcile(deployment_id=deployment.pk)
    late = next(item for item in workers(local_root) if item.option("--adapter-cache-dir").endswith("-1"))
    url = f"http://127.0.0.1:{late.option('--port')}"
    eventually(lambda: _answers(url), message="the second worker answers")
    deployment_update(deployment=deployment, min_copies=1)
    drive(deployment, lambda row: serving(row) and len(workers(local_root)) == 1, pause=wait)
    assert url not in published(tiny)
    (step,) = deployment.steps.filter(action="stop_worker")
    assert step.cause == "no longer wanted"


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ping", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_stream_longer_than_every_drain_is_not_cut(tiny: BaseModel, local_root: Path) -> None:
    environment = ENVIRONMENT | {"GRAFTWORK_WORKER_FLAG_DRAIN_SECONDS": "0"}
    deployment = drive(deploy(tiny, min_copies=2, environment=environment), serving, pause=wait)
    last = max(workers(local_root), key=lambda item: item.option("--adapter-cache-dir"))
    url = f"http://127.0.0.1:{last.option('--port')}/v1/completions"
    begun, ends = threading.Barrier(9), list[str]()

    def ask() -> None:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 480, "ignore_eos": True, "stream": True}
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            begun.wait(30)
            ends.append([*lines][-1])

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for asker in askers:
        asker.start()
    begun.wait(30)
    deployment_update(deployment=deployment, min_copies=1)
    drive(deployment, lambda row: serving(row) and len(workers(local_root)) == 1, pause=wait)
    for asker in askers:
        asker.join(60)
    assert ends == ["data: [DONE]"] * 8
    assert deployment.steps.filter(action="stop_worker").count() == 1
    deployment_remove(deployment=deployment)
    drive(deployment, removed, pause=wait)
