"""REST routes of the installation's live state, included by `controlplane.api_urls`."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern

from controlplane.fleet import api as fleet
from controlplane.metering import api as dead_letters
from controlplane.operations.health import api as health
from controlplane.platform.http.routes import route

LIVE_ROUTES: Final[list[URLPattern]] = [
    route("fleet", fleet.FleetApi, "fleet"),
    route("fleet/residency", fleet.FleetResidencyApi, "fleet-residency"),
    route("health/parts", health.HealthPartsApi, "health-parts"),
    route("health/checks", health.ChecksApi, "health-checks"),
    route("queues", health.QueuesApi, "queues"),
    route("dead-letters", dead_letters.DeadLettersApi, "dead-letters"),
    route("dead-letters/replay", dead_letters.DeadLetterReplayApi, "dead-letter-replay"),
]
