"""Filters and order of the adapter list, as its URL states them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import (
    adapter_labelled,
    adapter_named,
    adapter_on_base,
    adapter_with_status,
)
from controlplane.console.paging import searched

SORTS: Final = {
    "": (_("Name (A–Z)"), ("name",)),
    "-name": (_("Name (Z–A)"), ("-name",)),
    "-created": (_("Newest first"), ("-created_at", "-pk")),
    "created": (_("Oldest first"), ("created_at", "pk")),
}
STATUSES: Final = {
    AdapterVersion.Status.READY: _("ready"),
    AdapterVersion.Status.VALIDATING: _("validating"),
    AdapterVersion.Status.PENDING: _("pending"),
    AdapterVersion.Status.REFUSED: _("refused"),
}
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class AdapterListForm:
    """The filters and order of the list; "" does not filter.

    Attributes:
        label: `key=value` pairs with commas between; all of them must match.
        label_fault: True if `label` is malformed; then it does not filter.
    """

    search: str
    status: str
    base: str
    label: str
    sort: str

    @classmethod
    def from_request(cls, request: HttpRequest) -> Self:
        """Read a request's query; unknown values are ignored."""
        values = {
            name: request.GET.get(name, "").strip()[:_LONGEST] for name in ("status", "base", "label", "sort")
        }
        return cls(
            searched(request),
            values["status"] if values["status"] in STATUSES else "",
            values["base"],
            values["label"],
            values["sort"] if values["sort"] in SORTS else "",
        )

    @property
    def labels(self) -> dict[str, str]:
        """The labels that must match."""
        pairs = (part.partition("=") for part in self.label.split(",") if "=" in part)
        return {key.strip(): value.strip() for key, _equals, value in pairs}

    @property
    def label_fault(self) -> bool:
        return any("=" not in part for part in self.label.split(",")) if self.label else False

    @property
    def narrows(self) -> bool:
        """True if any filter is set."""
        return bool(self.search or self.status or self.base or self.label)

    def rows(self, adapters: QuerySet[Adapter]) -> QuerySet[Adapter]:
        """Return the `adapters` that match, in the requested order."""
        if self.search:
            adapters = adapter_named(adapters, self.search)
        if self.status:
            adapters = adapter_with_status(adapters, self.status)
        if self.base:
            adapters = adapter_on_base(adapters, self.base)
        if self.labels:
            adapters = adapter_labelled(adapters, self.labels)
        return adapters.order_by(*SORTS[self.sort][1])
