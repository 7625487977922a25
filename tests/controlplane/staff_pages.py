"""Every page for staff alone, and what its address names."""

from __future__ import annotations

from tests.controlplane.world import OWN, World

STAFF_PAGES = {
    "staff-tenants": "get", "staff-tenant": "get", "staff-export": "get", "staff-delete": "post",
    "staff-suspend": "post", "staff-resume": "post",
    "staff-cancel": "post", "staff-base-models": "get", "staff-base-model": "get",
    "staff-base-digests": "get", "staff-base-variants": "post", "staff-base-copies": "post",
    "staff-fleet": "get", "staff-fleet-status": "get", "staff-fleet-copy": "get",
    "staff-residency": "get", "staff-fleet-adapter": "get",
    "staff-health": "get", "staff-health-status": "get", "staff-queues": "get",
    "staff-queue-status": "get", "staff-queue-replay": "post",
    "staff-deployments": "get",
    "staff-deployment-new": "get", "staff-deployment": "get", "staff-deployment-status": "get",
    "staff-deployment-change": "post", "staff-deployment-retry": "post", "staff-deployment-remove": "post",
    "staff-deployment-scaling": "post",
    "staff-targets": "get", "staff-target-remove": "post", "staff-price-books": "get",
    "staff-price-book": "get", "staff-price-add": "post", "staff-invoices": "get",
    "staff-invoice-finalize": "post", "staff-invoice": "get", "staff-invoice-credit": "post",
    "staff-tax": "post", "staff-billing-details": "post", "staff-seller": "get",
    "staff-credit-note": "get", "staff-credit-note-void": "post",
    "staff-tax-remove": "post", "staff-books": "get", "staff-entry-reverse": "post",
    "staff-invoice-pay": "post", "staff-invoice-draft": "post", "staff-usage-sources": "get",
    "staff-usage-source-delete": "post",
    "staff-hosting": "get", "staff-fleet-bill": "get", "staff-instance-prices": "get",
    "staff-savings": "get", "staff-blended-price": "get", "staff-prepaid": "post", "staff-top-up": "post",
    "staff-deployment-adapters": "get", "staff-deployment-adapter-act": "post",
    "staff-deployment-consolidation": "get", "staff-deployment-consolidation-status": "get",
    "staff-limits": "post", "staff-quota": "post", "staff-audit": "get", "staff-audit-export": "get",
    "staff-deployment-rollouts": "get", "staff-deployment-rollout-act": "post",
    "staff-optimizations": "get", "staff-optimization-new": "get", "staff-optimization-check": "get",
    "staff-optimization": "get", "staff-optimization-status": "get", "staff-optimization-act": "post",
    "staff-prompt-sets": "get", "staff-comparison-new": "get", "staff-comparison": "get",
    "staff-assessment-new": "get", "staff-assessment": "get", "staff-assessment-status": "get",
    "staff-assessment-act": "post", "staff-comparison-status": "get", "staff-comparison-act": "post",
}  # fmt: skip
"""Pages for staff alone -> how they are asked for."""
STAFF_LISTS = (
    "staff-fleet", "staff-fleet-status", "staff-health", "staff-health-status", "staff-queues",
    "staff-queue-status", "staff-queue-replay",
    "staff-tenants", "staff-base-models", "staff-deployments", "staff-deployment-new", "staff-targets",
    "staff-price-books", "staff-invoices", "staff-hosting", "staff-fleet-bill", "staff-instance-prices",
    "staff-seller", "staff-invoice-draft", "staff-usage-sources",
    "staff-savings", "staff-blended-price", "staff-audit", "staff-audit-export",
    "staff-optimizations", "staff-optimization-new", "staff-optimization-check", "staff-prompt-sets",
    "staff-comparison-new", "staff-assessment-new",
)  # fmt: skip

_THINGS = {
    "staff-tax-remove": "treatment", "staff-entry-reverse": "entry", "staff-usage-source-delete": "source",
}  # fmt: skip
"""Pages whose address names what no other's does -> the name of its value in the world."""


def staff_thing(world: World, name: str) -> str:
    """Return the id that a staff page's URL names."""
    if name.startswith("staff-invoice") and name != "staff-invoices":
        return world.values["invoice"]
    if name.startswith("staff-credit-note"):
        return world.values["credit_note"]
    if name in _THINGS:
        return world.values[_THINGS[name]]
    kinds = {
        "fleet-copy": world.values["copy_id"],
        "fleet-adapter": world.values["engine_name"],
        "residency": "tiny-base",
        "price": "standard",
        "base": "tiny-base",
        "deployment": world.values["deployment"],
        "target": world.values["target"],
        "optimization": world.values["optimization"],
        "comparison": world.values["comparison"],
        "assessment": world.values["assessment"],
    }
    return next((thing for kind, thing in kinds.items() if kind in name), OWN)
