"""A text over its maximum length is refused with the bound and kept in the form; none is truncated."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.adapters.aliases import alias_move
from controlplane.adapters.models import Adapter, AdapterVersion
from controlplane.billing.models import JournalEntry, Price, PriceBook, TaxTreatment
from controlplane.billing.reports.models import InstancePrice
from controlplane.billing.services import price_book_create
from controlplane.catalog.models import BaseModel
from controlplane.errors import InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(tenant: Tenant) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(user_create(email="s@x.test", password="long-enough-7", is_staff=True))
    return client


def text_of(client: Client, path: str, form: dict[str, str]) -> str:
    return client.post(path, form, follow=True).content.decode()


def test_the_operators_forms(staff: Client) -> None:
    price_book_create(name="standard")
    once = staff.get("/staff/tenants/acme/").content.decode().split('name="once" value="')[1].split('"')[0]
    tax = {"starts": "2026-01-01", "kind": "taxed", "label": "VAT", "rate_percent": "19"}
    price = {"what": "price", "base_model": "llama", "effective_from": "2026-01-01", "input_nano": "1"}
    machine = {
        "instance_type": "ml.g5.2xlarge",
        "region": "us-east-1",
        "effective_from": "2026-01-01",
        "hour": "1",
    }
    for path, form, field, most in (
        ("/staff/tenants/acme/top-up", {"amount": "1", "what": "payment", "once": once}, "note", 200),
        ("/staff/tenants/acme/tax", tax, "label", 30),
        ("/staff/tenants/acme/tax", tax, "text", 300),
        ("/staff/price-books/", {"currency": "USD"}, "name", 63),
        ("/staff/price-books/standard/add", price, "adapter", 130),
        ("/staff/instance-prices/", machine, "source", 300),
        ("/staff/base-models/", {"name": "llama", "source": "/x"}, "licence", 100),
    ):
        shown = text_of(staff, path, form | {field: (form.get(field, "") + "1" * (most + 1))[: most + 1]})
        assert f"Ensure this field has no more than {most} characters." in shown, (path, field)
    left = (JournalEntry, TaxTreatment, Price, BaseModel)
    assert [model.objects.count() for model in left] == [0] * len(left)
    assert PriceBook.objects.count() == 1
    assert not InstancePrice.objects.filter(
        instance_type="ml.g5.2xlarge", effective_from="2026-01-01"
    ).exists()


def test_an_aliass_reason(tenant: Tenant) -> None:
    base = BaseModel.objects.create(
        name="tiny",
        served_name="tiny",
        source="/",
        architecture="LlamaForCausalLM",
        max_model_len=2048,
        dtype="bfloat16",
        modules={},
    )
    adapter = Adapter.objects.create(tenant=tenant, name="pirate", base_model=base)
    AdapterVersion.objects.create(
        adapter=adapter, number=1, status="ready", sha256="ab" * 32, uri="file:///a/", rank=2
    )
    with pytest.raises(InvalidInputError, match="1001 characters; the maximum is 1000"):
        alias_move(adapter=adapter, name="prod", number=1, reason="x" * 1001)
    assert alias_move(adapter=adapter, name="prod", number=1, reason="x" * 1000).name == "prod"
