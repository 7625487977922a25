"""Celery tasks of billing."""

from __future__ import annotations

import datetime as dt
from typing import Final

from celery import shared_task
from django.conf import settings

from controlplane.billing.budget_notices import NOTIFY_TASK, budget_notice_send, budget_notices_due
from controlplane.billing.budgets import budgets_publish
from controlplane.billing.credit_notes.document import CreditNoteDocument
from controlplane.billing.documents.pdfs import pdf_render, pdfs_render_due
from controlplane.billing.invoices.document import InvoiceDocument
from controlplane.billing.invoices.services import invoices_draft_due
from controlplane.billing.ledger.checkpoints import checkpoints_advance, checkpoints_check
from controlplane.billing.ledger.credits import credits_expire
from controlplane.billing.ledger.posting import books_check, usage_post_all
from controlplane.billing.quantities import first_day
from controlplane.billing.rates import rates_publish
from controlplane.platform.mail_server import MailServer
from controlplane.platform.task_signs import BOOKS_CHECK, check_ended, check_from
from controlplane.tenants.limits.services import PUBLISH_BUDGETS

_RECENT: Final = 3
"""Days whose usage is booked every few minutes; older days are booked once a night."""
_COMPARED: Final = 35
"""Days whose entries are compared with usage every night: at least the month that is invoiced next."""


@shared_task(name=PUBLISH_BUDGETS, ignore_result=True)
def publish_budgets(tenant: str = "") -> None:
    """Publishes the budget baselines of all tenants, or of one; Celery beat repeats it."""
    budgets_publish(redis_url=settings.GRAFTWORK.redis_url, tenant=tenant)


@shared_task(name="billing.publish_rates", ignore_result=True)
def publish_rates() -> None:
    """Publishes prices that come into force at midnight (UTC)."""
    rates_publish()


@shared_task(name="billing.post_usage", acks_late=True)
def post_usage() -> int:
    """Books the usage of the last days; returns how many entries were written."""
    today = dt.datetime.now(dt.UTC).date()
    written = usage_post_all(start=today - dt.timedelta(days=_RECENT), end=today + dt.timedelta(days=1))
    checkpoints_advance()
    return written


@shared_task(name="billing.nightly", acks_late=True)
def nightly() -> int:
    """Books late and repriced usage of any day; drafts invoices; lets credits expire; checks the ledger.

    Returns how many entries were written.
    """
    today = dt.datetime.now(dt.UTC).date()
    # Events are dropped after a time but their sums never are, so booking starts at the first sum.
    written = usage_post_all(start=first_day() or today, end=today + dt.timedelta(days=1))
    invoices_draft_due()
    credits_expire()
    # Compare past days only: today's usage has changed since it was booked.
    url, usual, end = settings.GRAFTWORK.redis_url, today - dt.timedelta(_COMPARED), today - dt.timedelta(1)
    start = check_from(url, check=BOOKS_CHECK, usual=usual, oldest=min(usual, first_day() or today))
    found = books_check(start=start, end=end)
    differing = len(found) + checkpoints_check()
    check_ended(url, check=BOOKS_CHECK, start=start, end=end, differing=differing, examples=found)
    return written


@shared_task(name=InvoiceDocument.render_task, acks_late=True)
def render_invoice(invoice_id: int) -> None:
    """Renders a finalized invoice's PDF if it is due; `render_due` retries failures."""
    pdf_render(InvoiceDocument, invoice_id)


@shared_task(name=CreditNoteDocument.render_task, acks_late=True)
def render_credit_note(credit_note_id: int) -> None:
    """Renders a credit note's PDF if it is due; `render_due` retries failures."""
    pdf_render(CreditNoteDocument, credit_note_id)


@shared_task(name="billing.render_due", acks_late=True)
def render_due() -> None:
    """Renders the PDFs that failed, or were not enqueued, before."""
    pdfs_render_due(InvoiceDocument)
    pdfs_render_due(CreditNoteDocument)


@shared_task(name=NOTIFY_TASK, acks_late=True)
def notify_budget(notice_id: int) -> None:
    """Mails the members of a tenant about a budget, if that is due."""
    with MailServer() as server:
        budget_notice_send(notice_id=notice_id, server=server)


@shared_task(name="billing.notify_budgets", acks_late=True)
def notify_budgets() -> None:
    """Sends the mails that failed, or were not enqueued, before."""
    with MailServer() as server:
        for notice_id in budget_notices_due():
            budget_notice_send(notice_id=notice_id, server=server)
