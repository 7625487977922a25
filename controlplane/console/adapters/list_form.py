"""How the list of adapters is narrowed and ordered, as its page's address says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.adapters.selectors import adapter_labelled, adapter_named
from controlplane.console.paging import searched

SORTS: Final = {
    "": (_("By name"), ("name",)),
    "-name": (_("By name, backwards"), ("-name",)),
    "-created": (_("Newest first"), ("-created_at", "-pk")),
    "created": (_("Oldest first"), ("created_at", "pk")),
}
STATUSES: Final = {
    AdapterVersion.Status.READY: _("ready"),
    AdapterVersion.Status.VALIDATING: _("validating"),
    AdapterVersion.Status.PENDING: _("waiting"),
    AdapterVersion.Status.REFUSED: _("refused"),
}
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class AdapterListForm:
    """What the list is asked for; "" is everything.

    Attributes:
        label: `key=value`, with commas between where several must hold.
        label_fault: whether `label` is not written so; then it narrows nothing.
    """

    search: str
    status: str
    base: str
    label: str
    sort: str

    @classmethod
    def of(cls, request: HttpRequest) -> Self:
        """Unknown words are taken for none."""
        asked = {
            name: request.GET.get(name, "").strip()[:_LONGEST] for name in ("status", "base", "label", "sort")
        }
        return cls(
            searched(request),
            asked["status"] if asked["status"] in STATUSES else "",
            asked["base"],
            asked["label"],
            asked["sort"] if asked["sort"] in SORTS else "",
        )

    @property
    def labels(self) -> dict[str, str]:
        """Those that must hold."""
        pairs = (part.partition("=") for part in self.label.split(",") if "=" in part)
        return {key.strip(): value.strip() for key, _equals, value in pairs}

    @property
    def label_fault(self) -> bool:
        return any("=" not in part for part in self.label.split(",")) if self.label else False

    @property
    def narrows(self) -> bool:
        """Whether anything but the order is asked for."""
        return bool(self.search or self.status or self.base or self.label)

    def rows(self, adapters: QuerySet[Adapter]) -> QuerySet[Adapter]:
        """Those of `adapters` that are asked for, in their order."""
        if self.search:
            adapters = adapter_named(adapters, self.search)
        if self.status:
            versions = AdapterVersion.objects.filter(
                adapter=OuterRef("pk"), status=self.status, deleted_at=None
            )
            adapters = adapters.filter(Exists(versions))
        if self.base:
            adapters = adapters.filter(base_model__name=self.base)
        if self.labels:
            adapters = adapter_labelled(adapters, self.labels)
        return adapters.order_by(*SORTS[self.sort][1])
