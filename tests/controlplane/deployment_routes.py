"""REST routes of deployments by name, and the permission that each method needs."""

from __future__ import annotations

STAFF = "staff"
DEPLOYMENT_ROUTES: dict[str, dict[str, str]] = {
    "targets": {"get": STAFF, "post": STAFF},
    "target": {"get": STAFF, "patch": STAFF, "delete": STAFF},
    "deployments": {"get": STAFF, "post": STAFF},
    "deployment": {"get": STAFF, "patch": STAFF, "delete": STAFF},
    "deployment-retry": {"post": STAFF},
    "deployment-state": {"get": STAFF},
    "deployment-scaling": {"get": STAFF, "put": STAFF, "delete": STAFF},
    "deployment-scale-ups": {"get": STAFF},
    "deployment-prediction": {"get": STAFF},
    "deployment-consolidation": {"get": STAFF, "post": STAFF},
    "deployment-rollouts": {"get": STAFF, "post": STAFF},
    "deployment-rollout": {"get": STAFF},
    "deployment-rollout-usage": {"get": STAFF},
    "deployment-rollout-pause": {"post": STAFF},
    "deployment-rollout-resume": {"post": STAFF},
    "deployment-rollout-abort": {"post": STAFF},
    "deployment-adapters": {"get": STAFF},
    "adapter-rules": {"get": STAFF},
    "adapter-rule": {"get": STAFF, "put": STAFF, "delete": STAFF},
    "adapter-rule-evict": {"post": STAFF},
    "adapter-rule-move": {"post": STAFF},
    "placements": {"get": STAFF},
    "deployment-steps": {"get": STAFF},
}
FLEET_ROUTES: dict[str, dict[str, str]] = {
    "fleet": {"get": STAFF},
    "fleet-residency": {"get": STAFF},
    "health-checks": {"get": STAFF},
    "health-parts": {"get": STAFF},
    "queues": {"get": STAFF},
    "dead-letters": {"get": STAFF},
    "dead-letter-replay": {"post": STAFF},
}
