"""The operator's checklist from a new installation to the first invoice, by the current state."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from controlplane.billing.selectors import price_book_list
from controlplane.catalog.selectors import base_model_list
from controlplane.deployments.selectors import copy_list
from controlplane.tenants.selectors import tenant_list


@dataclass(frozen=True, slots=True)
class Step:
    """A step, and the page on which to take it."""

    name: str
    title: str
    text: str
    url: str
    done: bool


def set_up_steps() -> list[Step]:
    """Return the steps in order. Four queries."""
    return [
        Step(
            "base",
            _("Register a base model"),
            _("A folder, an S3 prefix or a Hugging Face id. Its shapes are read from the checkpoint."),
            reverse("console:staff-base-models"),
            base_model_list().exists(),
        ),
        Step(
            "deploy",
            _("Deploy it"),
            _("On this host, on SageMaker, or on a vLLM server that runs already."),
            reverse("console:staff-deployment-new"),
            copy_list().exists(),
        ),
        Step(
            "tenant",
            _("Create a tenant"),
            _("A customer or a team. Its owner receives an invitation by e-mail."),
            reverse("console:staff-tenants"),
            tenant_list().exists(),
        ),
        Step(
            "prices",
            _("Set prices"),
            _("Usage without a price is metered and appears on no invoice."),
            reverse("console:staff-price-books"),
            price_book_list().exists(),
        ),
    ]
