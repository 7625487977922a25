"""Removes the folders of ended works and unused checkpoint copies from a host."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from typing import Final

from django.db.models import Q
from django.utils import timezone

from controlplane.optimization.models import OPEN, ComparisonRun, OptimizationJob, Status
from controlplane.optimization.workspace import root, work_folder, work_forget

RESUMABLE_FOR: Final = timedelta(days=7)
"""How long the finished steps of a failed or cancelled job are kept, so that the same job can resume."""


def leftovers_collect() -> int:
    """Remove leftovers of ended works from this host; return how many folders were removed."""
    return _jobs() + _comparisons() + _checkpoints()


def _jobs() -> int:
    removed, before = 0, timezone.now() - RESUMABLE_FOR
    resumable = Q(status__in=OPEN) | Q(status__in=(Status.FAILED, Status.CANCELLED), ended_at__gt=before)
    for job in OptimizationJob.objects.exclude(status__in=OPEN).order_by("pk").iterator():
        # A later job with the same identity uses the same folder.
        same = OptimizationJob.objects.filter(identity=job.identity)
        if work_folder(job).exists() and not same.filter(resumable).exists():
            work_forget(job)
            removed += 1
    return removed


def _comparisons() -> int:
    removed = 0
    folder = root() / "comparisons"
    for path in folder.iterdir() if folder.is_dir() else ():
        found = ComparisonRun.objects.filter(pk=int(path.name)).first() if path.name.isdigit() else None
        if found is None or not found.is_open:
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _checkpoints() -> int:
    """Remove copies of checkpoints that no work has used for a week; return how many."""
    removed, before = 0, time.time() - RESUMABLE_FOR.total_seconds()
    folder = root() / "checkpoints"
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.stat().st_mtime < before:
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed
