"""Response types of the API, as frozen structs. Unknown fields are ignored."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

import msgspec


class Step(msgspec.Struct, frozen=True):
    """One step of a version's validation; `status` is waiting, running, done, warned, skipped or failed."""

    name: str
    title: str
    status: str
    detail: str = ""


class Version(msgspec.Struct, frozen=True):
    """An immutable version; `status` is pending, validating, ready or refused (`reason` says why)."""

    adapter: str
    number: int
    status: str
    reason: str = ""
    steps: tuple[Step, ...] = ()
    source_uri: str = ""
    sha256: str = ""
    rank: int | None = None
    size_bytes: int | None = None
    dataset: str = ""
    run_url: str = ""
    base_sha256: str = ""
    notes: str = ""
    created_at: datetime | None = None

    @property
    def settled(self) -> bool:
        """True if the version is ready or refused, and so will not change."""
        return self.status in ("ready", "refused")


class Arm(msgspec.Struct, frozen=True):
    """One side of a split alias."""

    version: int
    percent: int


class Alias(msgspec.Struct, frozen=True):
    """A name that moves between versions: `<adapter>@<name>`."""

    name: str
    version: int
    arms: tuple[Arm, ...] = ()
    fallback: tuple[str, ...] = ()
    moved_at: datetime | None = None


class AliasState(msgspec.Struct, frozen=True):
    """The target of an alias at a time: a version, or arms of (version, percent)."""

    version: int
    arms: tuple[tuple[int, int], ...] = ()


class AliasChange(msgspec.Struct, frozen=True):
    """One change of an alias; `before` is None at its creation, `after` None at its removal."""

    id: int
    before: AliasState | None = None
    after: AliasState | None = None
    reason: str = ""
    by: str | None = None
    created_at: datetime | None = None


class Adapter(msgspec.Struct, frozen=True):
    """An adapter; `default_version` serves its bare name."""

    name: str
    base_model: str
    default_version: int | None = None
    pinned: int | None = None
    fallback: tuple[str, ...] = ()
    versions: tuple[Version, ...] = ()
    aliases: tuple[Alias, ...] = ()
    created_at: datetime | None = None


class AdapterCheck(msgspec.Struct, frozen=True):
    """The default version now; `becomes_default`: True if the new version replaces it once it is ready."""

    default_version: int | None = None
    becomes_default: bool = True


class Key(msgspec.Struct, frozen=True):
    """An API key, without its secret."""

    public_id: str
    name: str
    scopes: tuple[str, ...] = ()
    project: str = "default"
    allowed_models: tuple[str, ...] | None = None
    allowed_endpoints: tuple[str, ...] | None = None
    allowed_networks: tuple[str, ...] | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    rotated_at: datetime | None = None
    old_secret_until: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class NewKey(Key, frozen=True):
    """A new key with its text, which no later answer contains."""

    key: str = ""


class UsageRow(msgspec.Struct, frozen=True):
    """Usage of one group; `price` is decimal text, None if some tokens have no price.

    Reasoning tokens are among the completion tokens; an older control plane does not state them.
    """

    group: dict[str, str]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    price: str | None = None
    reasoning_tokens: int = 0
    images: int = 0


class UsageReport(msgspec.Struct, frozen=True):
    """Rows sorted by group, and their total."""

    start: date
    end: date
    group_by: tuple[str, ...]
    currency: str
    rows: tuple[UsageRow, ...]
    total: UsageRow


class Balance(msgspec.Struct, frozen=True):
    """A tenant's balance, in nano-units (1e-9) of `currency`; `unpriced`: some usage is in no amount."""

    tenant: str
    currency: str
    unbilled: int
    receivable: int
    prepaid: int
    credit: int
    available: int
    unpriced: bool = False


class Invoice(msgspec.Struct, frozen=True):
    """A month's invoice: lines + carried in + tax + shortfall = credits + prepaid + due + carried
    out, in nano-units."""

    id: int
    tenant: str
    month: date
    title: str
    status: str
    currency: str
    number: int | None = None
    lines_nano: int = 0
    carried_in_nano: int = 0
    credits_nano: int = 0
    net_nano: int = 0
    tax_nano: int = 0
    tax_kind: str = ""
    tax_label: str = ""
    tax_rate_percent: str = "0"
    tax_number: str = ""
    tax_text: str = ""
    prepaid_nano: int = 0
    shortfall_nano: int = 0
    due_nano: int = 0
    carried_out_nano: int = 0
    unpriced: bool = False
    seller: dict[str, str] | None = None
    buyer: dict[str, str] | None = None
    finalized_at: datetime | None = None


class InvoiceLine(msgspec.Struct, frozen=True):
    """Quantity times price, without tax; `unit_nano` and `amount_nano` are None if there is no price."""

    position: int
    month: date
    item: str
    quantity: int
    per: int
    adjusts: bool = False
    project: str = ""
    key_id: str = ""
    key_name: str | None = None
    adapter: str = ""
    base_model: str = ""
    backend: str = ""
    unit_nano: int | None = None
    amount_nano: int | None = None


class CreditNote(msgspec.Struct, frozen=True):
    """A credit on an invoice: net + tax = pre-payment + post-payment, in nano-units.

    A note that voids another has the same amounts, and reverses them.
    """

    id: int
    tenant: str
    number: int
    title: str
    invoice: int
    invoice_title: str
    reason: str
    currency: str
    net_nano: int
    tax_nano: int
    total_nano: int
    pre_payment_nano: int
    post_payment_nano: int
    post_payment_as: str
    memo: str = ""
    voids: int | None = None
    voided_by: int | None = None
    seller: dict[str, str] | None = None
    buyer: dict[str, str] | None = None
    issued_at: datetime | None = None


class CreditNoteLine(msgspec.Struct, frozen=True):
    """A credit without tax on an invoice line, or on the whole invoice (`invoice_position` None)."""

    position: int
    amount_nano: int
    invoice_position: int | None = None
    item: str = ""
    adapter: str = ""
    base_model: str = ""
    key_id: str = ""
    key_name: str | None = None


class BillingDetails(msgspec.Struct, frozen=True):
    """The tenant's name and address on documents, in force from a UTC day until a later one."""

    id: int
    starts: date
    legal_name: str
    address: str
    contact: str = ""
    reference: str = ""


class TaxTreatment(msgspec.Struct, frozen=True):
    """In force from a UTC day until a later one; `kind` is taxed, reverse_charge or exempt."""

    id: int
    starts: date
    kind: str
    label: str
    rate_percent: str
    tax_number: str = ""
    text: str = ""


class BaseModel(msgspec.Struct, frozen=True):
    """A base model that adapters can be registered for."""

    name: str
    architecture: str = ""
    max_model_len: int = 0
    dtype: str = ""
    max_lora_rank: int = 0
    dropped_parameters: tuple[str, ...] = ()


class Identity(msgspec.Struct, frozen=True):
    """The caller's tenant and permissions, and the gateway's address."""

    tenant: str | None = None
    tenant_name: str = ""
    role: str | None = None
    key: str | None = None
    email: str | None = None
    permissions: tuple[str, ...] = ()
    gateway_url: str = ""


def to_json(value: Any) -> Any:
    """Converts a struct, or a list of structs, to plain values for `json.dumps`."""
    return msgspec.to_builtins(value)
