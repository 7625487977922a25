"""Finalizing an invoice in a browser: the page shows the amount due and asks before it closes the month."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from controlplane.billing.invoices.services import invoice_draft
from controlplane.billing.models import Invoice
from controlplane.billing.services import price_book_create, price_set
from tests.controlplane.billing.parties import parties_state
from tests.controlplane.billing.test_invoices import JANUARY, use
from tests.controlplane.console.conftest import Team
from tests.controlplane.console.test_browser import open_page

__all__ = ["open_page"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.costly("renders pages in Chromium"),
    pytest.mark.django_db(transaction=True),
]


def test_an_invoice_is_finalized_after_its_amount_was_confirmed(
    open_page: Callable[..., Page], acme: Team
) -> None:
    acme.user.is_staff = True
    acme.user.save()
    price_set(
        book=price_book_create(name="standard"),
        base_model="tiny",
        effective_from=JANUARY,
        input_nano=1000,
        cached_input_nano=0,
        output_nano=0,
    )
    parties_state()
    use("2026-01-05", 123_456)
    invoice = invoice_draft(tenant="acme", month=JANUARY)
    page = open_page("/staff/invoices/")
    page.get_by_test_id(f"review-{invoice.pk}").click()
    page.get_by_test_id("finalize").click()
    expect(page.get_by_test_id("finalize-total")).to_contain_text("Amount due: $0.12")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_test_id("finalize-total")).to_be_hidden()
    assert not Invoice.objects.get().is_final
    page.get_by_test_id("finalize").click()
    page.get_by_test_id("finalize-confirm").click()
    expect(page.get_by_role("heading", name="ACME-000001")).to_be_visible()
    assert Invoice.objects.get().is_final
