"""REST routes of the installation's live state, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from controlplane.fleet import api as fleet
from controlplane.metering import api as dead_letters
from controlplane.operations.health import api as health

LIVE_ROUTES: Final[list[URLPattern]] = [
    path("fleet", fleet.FleetApi.as_view(), name="fleet"),
    path("fleet/residency", fleet.FleetResidencyApi.as_view(), name="fleet-residency"),
    path("health/parts", health.HealthPartsApi.as_view(), name="health-parts"),
    path("health/checks", health.ChecksApi.as_view(), name="health-checks"),
    path("queues", health.QueuesApi.as_view(), name="queues"),
    path("dead-letters", dead_letters.DeadLettersApi.as_view(), name="dead-letters"),
    path("dead-letters/replay", dead_letters.DeadLetterReplayApi.as_view(), name="dead-letter-replay"),
]
