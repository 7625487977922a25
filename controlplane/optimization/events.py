"""The journal of works."""

from __future__ import annotations

from controlplane.deployments.journal import actor_name
from controlplane.optimization.models import Work, WorkEvent


def event_add(work: Work, event: str, detail: str = "") -> None:
    """Adds an event, with its time and its actor."""
    WorkEvent.objects.create(
        **{f"{work.KIND}_id": work.pk}, event=event, detail=detail[:4000], actor=actor_name()
    )
