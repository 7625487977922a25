"""Every function that writes to the database records it in the audit log, or is listed with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = "audit_record"

UNRECORDED = {
    "controlplane.billing.documents.pdfs.pdf_ready": "queueing: no decision of anybody's",
    "controlplane.catalog.digests.digest_run": "what a task read of files; who asked for it is recorded",
    "controlplane.catalog.digests.digests_resume": "queueing: no decision of anybody's",
    "controlplane.adapters.aliases.default_record": "is a history of its own; the change itself is recorded",
    "controlplane.adapters.lifecycle.artifacts_discard": "clears files away after a change that is recorded",
    "controlplane.adapters.quotas.quota_check_bytes": "makes the row that it locks, without any limit in it",
    "controlplane.adapters.quotas.quota_check_registration": "makes the row that it locks, without a limit",
    "controlplane.adapters.services.staging_discard": "clears files away after a change that is recorded",
    "controlplane.platform.audit.services.audit_record": "is the log",
    "controlplane.billing.budgets.budgets_publish": "marks that a budget's warning was given",
    "controlplane.billing.budget_notices.thresholds_tell": "marks who was told of what was spent",
    "controlplane.billing.ledger.journal.entries_write": "is a journal of its own",
    "controlplane.billing.ledger_head.head_lock": "makes the row that it locks",
    "controlplane.billing.reports.list_prices.add_list_prices": "a migration of a new installation",
    "controlplane.optimization.bundled_sets.add_bundled_sets": "a migration of a new installation",
    "controlplane.billing.prepaid_notices.prepaid_forget": "unmarks it: the limit's lift is recorded",
    "controlplane.billing.prepaid_notices.prepaid_tell": "marks who was told of what was spent",
    "controlplane.billing.ledger.checkpoints.checkpoints_advance": "sums of the journal, made anew from it",
    "controlplane.billing.ledger.checkpoints.checkpoints_check": "sums of the journal, made anew from it",
    "controlplane.billing.ledger.posting.usage_post": "is a journal of its own, made from usage and prices",
    "controlplane.billing.ledger.posting.usage_post_held": "the same, under a lock that its caller holds",
    "controlplane.console.account.allauth_adapter.AccountAdapter": "its receivers do (account.events)",
    "controlplane.artifacts.credentials.services.credential_secret": "marks when a credential was last used",
    "controlplane.deployments.leases.Lease": "who drives a deployment just now, and what was seen of it",
    "controlplane.deployments.placement.reconciler.reconcile_placements": "follows recorded rules",
    "controlplane.deployments.placement.placements.placements_remove": "its caller records the removal",
    "controlplane.deployments.placement.placements.placements_settle": "what was seen in a target",
    "controlplane.deployments.placement.placements.placements_sync": "follows recorded routes",
    "controlplane.deployments.phases.machines.machines_record": "what was seen in a target",
    "controlplane.deployments.phases.recorder.scale_up_begin": "what a task did; a step tells it",
    "controlplane.deployments.phases.recorder.scale_ups_observe": "what was seen in a target",
    "controlplane.deployments.autoscaler.controller.scale": "a task's, by a recorded policy; a step tells it",
    "controlplane.deployments.rollouts.decisions.rollout_decide": "its ends record themselves",
    "controlplane.deployments.rollouts.services.deployment_rollout_judged": "the figures of a look",
    "controlplane.deployments.copies.services.removed_copies_forget": "removals are recorded; kept for a day",
    "controlplane.deployments.copies.endpoints.copies_sync": "drain times; copies record themselves",
    "controlplane.deployments.journal.step_add": "is a journal of its own",
    "controlplane.deployments.scheduling.deployments_sweep": "queueing: no decision of anybody's",
    "controlplane.metering.prompt_log.services.prompts_expire": "kept for as long as a recorded choice says",
    "controlplane.metering.prompt_log.services.prompts_take": "kept by a recorded choice",
    "controlplane.platform.idempotency.services.answers_expire": "answers kept for a repetition, not changes",
    "controlplane.platform.idempotency.services.claim_release": "answers kept for a repetition, not changes",
    "controlplane.platform.idempotency.services.claim_take": "answers kept for a repetition, not changes",
    "controlplane.tenants.members.services.invitation_sent": "queueing: no decision of anybody's",
    "controlplane.metering.hosting.hours.spans_count": "what there was is a journal of its own",
    "controlplane.metering.hosting.hours.spans_drop_old": "kept for as long as a setting says",
    "controlplane.metering.hosting.observation.spans_update": "what there was is a journal of its own",
    "controlplane.metering.adapter_hours.adapter_hours_write": "usage is a journal of its own",
    "controlplane.metering.adapter_hours.adapter_hours_drop_old": "sums of usage, kept for a fixed time",
    "controlplane.monitoring.cloudwatch.export.metrics_export": "which minutes of metrics were sent",
    "controlplane.monitoring.evaluation.alarms_evaluate": "the history of states is a journal of its own",
    "controlplane.monitoring.evaluation.changes_forget": "the history of states is kept for a fixed time",
    "controlplane.monitoring.quarantines.services.quarantines_forget": "kept for a fixed time",
    "controlplane.metering.insert.events_insert": "usage is a journal of its own",
    "controlplane.metering.services.usage_write": "usage is a journal of its own",
    "controlplane.metering.partitions.events_drop": "usage is kept for as long as a setting says",
    "controlplane.metering.cloud_events.intake.event_replay": "usage is a journal of its own",
    "controlplane.metering.cloud_events.intake.events_take": "usage is a journal of its own",
    "controlplane.metering.insert.events_insert_told": "usage is a journal of its own",
    "controlplane.metering.replay.dead_usage_replay": "usage is a journal of its own",
    "controlplane.metering.replay.dead_usage_replay_waiting": "usage is a journal of its own",
    "controlplane.optimization.artifacts.artifact_keep": "bytes on their way: the job's end records itself",
    "controlplane.optimization.artifacts.artifacts_collect": "clears files away; changes are recorded",
    "controlplane.optimization.claims.Claim": "who is at a work just now, and how far it is",
    "controlplane.optimization.endings.attempt_begin": "what a task did; an event tells it",
    "controlplane.optimization.endings.attempt_end": "when a machine was at work is a journal of its own",
    "controlplane.optimization.endings.attempt_seen": "when a machine was at work is a journal of its own",
    "controlplane.optimization.events.event_add": "is a journal of its own",
    "controlplane.optimization.metered.attempts_metered": "marks what the sums of hosting have taken over",
    "controlplane.optimization.queueing.work_enqueue": "queueing: no decision of anybody's",
    "controlplane.optimization.results.job_keep": "the job's end and its variant record themselves",
    "controlplane.optimization.sagemaker.keeping.remote_attempt": "machines' hours are a journal",
    "controlplane.optimization.sagemaker.keeping.remote_keep": "its end and its variant are recorded",
    "controlplane.canaries.services.rollout_note": "the figures of a look that decided nothing",
    "controlplane.artifacts.uploads.append.upload_append": "the registration is recorded",
    "controlplane.artifacts.uploads.services.upload_create": "the registration is recorded",
    "controlplane.artifacts.uploads.services.upload_discard": "the registration is recorded",
    "controlplane.routes.services.route_changes_prune": "the outbox of changes that are recorded",
    "controlplane.routes.services.route_lock": "the outbox of changes that are recorded",
    "controlplane.routes.services.route_remove": "the outbox of changes that are recorded",
    "controlplane.routes.services.route_renumber": "the outbox of changes that are recorded",
    "controlplane.routes.services.route_set": "the outbox of changes that are recorded",
    "controlplane.webhooks.deliveries.deliveries_enqueue_due": "queueing: no decision of anybody's",
    "controlplane.webhooks.deliveries.events_forget": "deliveries' own retention",
    "controlplane.webhooks.outbox.event_emit": "the outbox of changes that are recorded",
    "controlplane.webhooks.outbox.event_emit_test": "the caller records it",
    "controlplane.sign_up.services.sign_up_begin": "a stranger's wish: what comes of it is recorded",
    "controlplane.sign_up.services.sign_up_sent": "queueing: no decision of anybody's",
    "controlplane.sign_up.services.sign_ups_forget": "strangers' wishes, kept for a day",
    "controlplane.tenants.services.keys.api_keys_touch": "a use: of the API what it did is recorded",
    "controlplane.tenants.services.staff_tokens.staff_token_verify": "it notes the time of a use",
    "controlplane.tenants.services.tenants.user_end_sessions": "part of changes that are recorded",
    "controlplane.tenants.sessions.SessionStore": "logins and logouts are recorded (account.events)",
}
"""Functions, and classes, that write and record nothing."""

_WRITES = {
    "save",
    "delete",
    "create",
    "bulk_create",
    "bulk_update",
    "get_or_create",
    "update_or_create",
    "create_user",
    "create_superuser",
    "aupdate",
    "acreate",
    "asave",
    "adelete",
    "executemany",
}
_QUERY = {"objects", "filter", "exclude", "all", "select_for_update", "order_by"}
"""`update` is a write where one of these stands before it, else it is a dictionary's or a digest's."""
_NOT_SERVICES = ("api", "admin", "models", "apps", "tests", "migrations", "settings", "authentication")


class Module:
    """A module's functions and classes, each with what it calls by name and whether it writes or records."""

    def __init__(self, source: str) -> None:
        self.calls: dict[str, set[str]] = {}
        self.writes: set[str] = set()
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.calls[node.name] = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                if any(_writes(call) for call in ast.walk(node) if isinstance(call, ast.Call)):
                    self.writes.add(node.name)

    def silent(self) -> Iterator[str]:
        """Public names that write, themselves or through private ones, and never record."""
        for name in self.calls:
            reached = self._reached(name)
            if name.startswith("_") or not reached & self.writes:
                continue
            if not any(RECORD in self.calls[part] for part in reached):
                yield name

    def _reached(self, start: str) -> set[str]:
        found, waiting = {start}, [start]
        while waiting:
            private = {name for name in self.calls[waiting.pop()] if name in self.calls and name[0] == "_"}
            waiting += private - found
            found |= private
        return found


def _writes(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in _WRITES:
        return True
    chain = {part.attr for part in ast.walk(call.func.value) if isinstance(part, ast.Attribute)}
    return call.func.attr == "update" and bool(chain & _QUERY)


def silent_writers() -> set[str]:
    found = set()
    for path in sorted((ROOT / "controlplane").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not set(module.split(".")) & set(_NOT_SERVICES):
            found |= {f"{module}.{name}" for name in Module(path.read_text()).silent()}
    return found


def test_whoever_writes_records_it() -> None:
    silent = silent_writers()
    advice = "call audit.services.audit_record last in the transaction, or state a reason in UNRECORDED"
    assert silent - set(UNRECORDED) == set(), advice
    assert set(UNRECORDED) - silent == set(), "UNRECORDED names what is gone, or records by now"


@pytest.mark.parametrize(
    "body",
    ["Key.objects.create(name='k')", "key.save()", "Key.objects.filter(pk=1).update(name='k')", "_private()"],
)
def test_a_silent_write_is_found(body: str) -> None:
    source = dedent(f"""
        def key_change():
            {body}
            RECORD()

        def _private():
            Key.objects.all().delete()

        def key_name():
            digest.update(b"")
            return {{}}.update({{}})
        """)
    assert list(Module(source).silent()) == ["key_change"]
    assert list(Module(source.replace("RECORD", RECORD)).silent()) == []
