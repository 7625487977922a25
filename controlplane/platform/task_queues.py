"""Which Celery queue a task waits in, and how long it may run.

Tasks that tenants' files or URLs, or the mail server, can slow down have their own queues. Tasks that publish
limits, decide rollouts or tidy up then run even if all workers of those queues are busy (see
docs/adr/0029-task-queues.md).
"""

from __future__ import annotations

from typing import Final

PROMPT: Final = "graftwork"
WEBHOOKS: Final = "graftwork.webhooks"
MAIL: Final = "graftwork.mail"
LONG: Final = "graftwork.long"
DEPLOYMENTS: Final = "graftwork.deployments"
OPTIMIZE_CPU: Final = "graftwork.optimize.cpu"
OPTIMIZE_GPU: Final = "graftwork.optimize.gpu"

DEFAULT_LIMIT_S: Final = 120
"""Seconds until a task is interrupted; GRACE_S later its process is killed and replaced."""
GRACE_S: Final = 30
LONG_LIMITS_S: Final = {
    "adapters.purge": 1800,
    "adapters.validate": 3600,
    "billing.nightly": 3600,
    "billing.post_usage": 600,
    "billing.render_due": 1800,
    # A document of thousands of lines takes a minute; rendering depends on no outside service.
    "billing.render_credit_note": 300,
    "billing.render_invoice": 300,
    # One checkpoint; finished files are kept, so the next run resumes.
    "catalog.digest": 6 * 3600,
    "idempotency.expire": 1800,
    "metering.look_at_hosting": 600,
    "metering.nightly": 3600,
    "metering.replay_dead": 3600,
    "operations.purge_tenants": 3600,
    # Artifacts of many gigabytes are removed file by file.
    "optimization.collect": 1800,
    "uploads.expire": 1800,
    "webhooks.forget": 1800,
}
WEBHOOK_LIMITS_S: Final = {"webhooks.deliver": 60}
# A separate queue, so that a slow target delays neither budgets nor validations.
# One step may upload one file of a checkpoint; the calls have their own timeouts.
DEPLOYMENT_LIMITS_S: Final = {
    "deployments.reconcile": 6 * 3600,
    "deployments.scale": 60,
    "monitoring.export_metrics": 300,
    # Uploads a checkpoint, or reads a result's files for their digests.
    "optimization.look_at_sagemaker": 6 * 3600,
}
# One attempt; finished steps are kept, so the next attempt resumes.
OPTIMIZE_CPU_LIMITS_S: Final = {"optimization.run_on_cpu": 24 * 3600}
OPTIMIZE_GPU_LIMITS_S: Final = {"optimization.run_on_gpu": 24 * 3600}
# A mail server that drops packets blocks each task until its connection times out.
MAIL_LIMITS_S: Final = {
    "billing.notify_budget": DEFAULT_LIMIT_S,
    "billing.notify_budgets": DEFAULT_LIMIT_S,
    "members.send_invitation": DEFAULT_LIMIT_S,
    "members.send_invitations": DEFAULT_LIMIT_S,
    "monitoring.notify_alarm": DEFAULT_LIMIT_S,
    "monitoring.notify_alarms": DEFAULT_LIMIT_S,
    "monitoring.notify_quarantine": DEFAULT_LIMIT_S,
    "sign_up.send": DEFAULT_LIMIT_S,
    "sign_up.send_due": DEFAULT_LIMIT_S,
    "webhooks.notify_disabled": DEFAULT_LIMIT_S,
    "webhooks.notify_due": DEFAULT_LIMIT_S,
}

QUEUES: Final = {
    name: {"exchange": name, "routing_key": name}
    for name in (PROMPT, WEBHOOKS, MAIL, LONG, DEPLOYMENTS, OPTIMIZE_CPU, OPTIMIZE_GPU)
}
"""A worker without `-Q` serves all queues. With Celery's default routing key each would get every message."""
ROUTES: Final = {
    name: {"queue": queue}
    for queue, limits in (
        (LONG, LONG_LIMITS_S),
        (WEBHOOKS, WEBHOOK_LIMITS_S),
        (MAIL, MAIL_LIMITS_S),
        (DEPLOYMENTS, DEPLOYMENT_LIMITS_S),
        (OPTIMIZE_CPU, OPTIMIZE_CPU_LIMITS_S),
        (OPTIMIZE_GPU, OPTIMIZE_GPU_LIMITS_S),
    )
    for name in limits
}
ANNOTATIONS: Final = {
    name: {"soft_time_limit": seconds, "time_limit": seconds + GRACE_S}
    for name, seconds in (
        LONG_LIMITS_S | WEBHOOK_LIMITS_S | DEPLOYMENT_LIMITS_S | OPTIMIZE_CPU_LIMITS_S | OPTIMIZE_GPU_LIMITS_S
    ).items()
}
