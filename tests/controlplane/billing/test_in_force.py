"""Which price book holds when, what each meter costs on a day, and books that begin on one."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client

from controlplane.billing.in_force import MeterPrice, When, meter_prices, terms_on
from controlplane.billing.models import PriceBook, PriceBookTerm
from controlplane.billing.price_list import PriceList
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end, term_remove
from controlplane.console.billing.price_timeline import WIDTH, lanes
from controlplane.errors import ConflictError, InvalidInputError
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import user_create

pytestmark = pytest.mark.django_db
DAY = dt.date(2026, 6, 1)
YEAR = dt.timedelta(days=365)


@pytest.fixture
def staff(db: None) -> Client:
    client = Client()
    client.force_login(user_create(email="s@graft.test", password="long-enough-7", is_staff=True))
    return client


def priced(book: PriceBook, base: str, nano: int, *, adapter: str = "", start: dt.date = DAY - YEAR) -> None:
    price_set(
        book=book,
        base_model=base,
        adapter=adapter,
        effective_from=start,
        input_nano=nano,
        cached_input_nano=0,
        output_nano=2 * nano,
    )


def inputs(day: dt.date, tenant: str = "") -> dict[tuple[str, str], tuple[int, str]]:
    """Return the input token prices by (base model, adapter)."""
    found = meter_prices(PriceList.load(), day=day, tenant=tenant)
    return {(at.base_model, at.adapter): (at.nano, at.book) for at in found if at.item == "input"}


@pytest.fixture
def price_books(tenant: Tenant, other_tenant: Tenant) -> tuple[PriceBook, PriceBook]:
    """Everyone's, and acme's own from DAY on for a year."""
    everyone = price_book_create(name="list")
    priced(everyone, "tiny", 100)
    priced(everyone, "tiny", 70, start=DAY + YEAR)
    priced(everyone, "tiny", 90, adapter="acme/bot")
    priced(everyone, "tiny", 95, adapter="globex/bot")
    own = price_book_create(name="acme-own", starts=DAY, tenant=tenant)
    term_end(term=own.terms.get(), ends=DAY + YEAR - dt.timedelta(days=1))
    return everyone, own


def test_each_day_has_its_prices(price_books: tuple[PriceBook, PriceBook]) -> None:
    own = price_books[1]
    for_all = {("tiny", ""): (100, "list")}
    adapters = {("tiny", "acme/bot"): (90, "list"), ("tiny", "globex/bot"): (95, "list")}
    assert inputs(DAY - YEAR - dt.timedelta(days=1)) == {}
    assert inputs(DAY) == for_all | adapters
    assert inputs(DAY + YEAR)["tiny", ""] == (70, "list")
    assert inputs(DAY, "acme") == for_all | {("tiny", "acme/bot"): (90, "list")}, "not another's adapters"
    priced(own, "tiny", 50)
    assert inputs(DAY, "acme") == {("tiny", ""): (50, "acme-own")}, "all of it by its own book"
    assert inputs(DAY - dt.timedelta(days=1), "acme")["tiny", "acme/bot"] == (90, "list")
    assert inputs(DAY, "globex")["tiny", "globex/bot"] == (95, "list")


def test_what_is_told_is_what_is_charged(price_books: tuple[PriceBook, PriceBook]) -> None:
    priced(price_books[1], "tiny", 50, adapter="acme/bot")
    hosting_price_set(book=price_books[0], kind="gpu_hour", effective_from=DAY, nano=7)
    hosting_price_set(book=price_books[1], kind="adapter_hour", effective_from=DAY, nano=9, base_model="tiny")
    prices = PriceList.load()
    found = meter_prices(prices, day=DAY, tenant="acme")
    assert {at.item for at in found} == {
        "input",
        "cached_input",
        "output",
        "request",
        "gpu_hour",
        "adapter_hour",
    }
    for at in found:
        name = at.adapter.partition("/")[2]
        charged = prices.unit(at.item, tenant="acme", day=DAY, base_model=at.base_model, adapter=name)
        assert charged == at.nano, at


def test_terms_are_past_in_force_or_to_come(price_books: tuple[PriceBook, PriceBook], tenant: Tenant) -> None:
    term_create(book=price_books[0], tenant=tenant, starts=DAY + YEAR, ends=None)

    def states(day: dt.date) -> list[tuple[str, str, When]]:
        return [(item.term.tenant, item.term.book.name, item.when) for item in terms_on(day)]

    always = ("", "list", When.IN_FORCE)
    assert states(DAY) == [always, ("acme", "acme-own", When.IN_FORCE), ("acme", "list", When.FUTURE)]
    assert states(DAY + YEAR) == [always, ("acme", "acme-own", When.PAST), ("acme", "list", When.IN_FORCE)]
    assert [item.term.tenant for item in terms_on(DAY, tenant="globex")] == [""]
    everyone, own = lanes(terms_on(DAY), day=DAY)
    assert [(span.x, span.width) for span in everyone.spans] == [(0.0, WIDTH)]
    assert [(span.x, span.width) for span in own.spans] == [(WIDTH / 2, WIDTH / 2)], "the rest is beyond"
    assert len(own.holdings) == 2


def test_a_book_that_begins_on_a_day(tenant: Tenant, price_books: tuple[PriceBook, PriceBook]) -> None:
    with pytest.raises(ConflictError, match=r"'next' for everyone from 2027-01-01 on .* book 'list'"):
        price_book_create(name="next", starts=dt.date(2027, 1, 1))
    assert not PriceBook.objects.filter(name="next").exists(), "all of it or nothing"
    term_end(term=price_books[0].terms.get(), ends=dt.date(2026, 12, 31))
    book = price_book_create(name="next", starts=dt.date(2027, 1, 1))
    assert book.terms.get().ends is None
    assert PriceBook.objects.get(is_default=True) == book
    with pytest.raises(InvalidInputError, match="starts is required"):
        price_book_create(name="other", tenant=tenant)
    with pytest.raises(InvalidInputError, match="from today"):
        price_book_create(name="other", is_default=True, starts=DAY)


def test_by_rest(staff: Client, price_books: tuple[PriceBook, PriceBook]) -> None:
    answer = staff.get("/api/v1/prices-in-force", {"day": "2026-06-01", "tenant": "acme"}).json()
    assert [(item["book"], item["tenant"], item["when"]) for item in answer["terms"]] == [
        ("list", "", "in_force"),
        ("acme-own", "acme", "in_force"),
    ]
    first = next(item for item in answer["prices"] if item["adapter"] == "acme/bot")
    assert (first["item"], first["nano"], first["since"]) == ("input", 90, str(DAY - YEAR))
    assert staff.get("/api/v1/prices-in-force").json()["day"] == str(dt.datetime.now(dt.UTC).date())
    assert staff.get("/api/v1/prices-in-force?day=june").status_code == 400
    assert staff.get("/api/v1/prices-in-force?tenant=none").status_code == 404
    body = {"name": "late", "starts": "2026-07-01", "tenant": "acme"}
    refused = staff.post("/api/v1/price-books", body, content_type="application/json")
    assert refused.status_code == 409
    assert "'late'" in refused.text
    assert "'acme-own'" in refused.text
    made = staff.post(
        "/api/v1/price-books", body | {"starts": "2028-01-01"}, content_type="application/json"
    ).json()
    assert [(term["tenant"], term["starts"]) for term in made["terms"]] == [("acme", "2028-01-01")]


def test_on_the_page(staff: Client, price_books: tuple[PriceBook, PriceBook]) -> None:
    page = staff.get("/staff/price-books/", {"day": "2026-06-01", "tenant": "acme"}).text
    assert 'data-testid="lane-acme"' in page
    assert "per million output tokens" in page
    assert ">$0.20</td>" in page, "2 x 100 nano-units a token"
    assert "no start date" in page
    assert "No prices on this day" in staff.get("/staff/price-books/", {"day": "2020-01-01"}).text
    for wrong, message in (({"day": "x"}, "such as 2026-11-01"), ({"tenant": "none"}, "there is no tenant")):
        assert message in staff.get("/staff/price-books/", wrong).text
    form = {"name": "next", "starts": "2027-01-01"}
    refused = staff.post("/staff/price-books/", form)
    assert refused.status_code == 422
    assert "would overlap price book" in refused.text
    term = PriceBookTerm.objects.get(tenant="")
    staff.post("/staff/price-books/list/add", {"what": "end", "term": str(term.pk), "ends": "2026-12-31"})
    assert staff.post("/staff/price-books/", form).status_code == 302
    page = staff.get("/staff/price-books/", {"day": "2026-12-31"}).text
    assert "future</span>" in page
    unknown = staff.post("/staff/price-books/", {"name": "x", "starts": "2027-01-01", "tenant": "none"})
    assert "there is no tenant" in unknown.text
    for term_id in ("999", "x", "9" * 30):
        gone = staff.post("/staff/price-books/list/add", {"what": "end", "term": term_id}, follow=True)
        assert "has no term" in gone.text


def test_a_price_says_what_it_is_of(price_books: tuple[PriceBook, PriceBook]) -> None:
    found = meter_prices(PriceList.load(), day=DAY, tenant="globex")
    assert found[0] == MeterPrice("input", "tiny", "", "", 100, "list", DAY - YEAR)
    assert [at.item for at in found[:4]] == ["input", "cached_input", "output", "request"]


def test_what_is_planned_is_taken_back_and_what_has_begun_is_not(
    staff: Client, price_books: tuple[PriceBook, PriceBook], tenant: Tenant
) -> None:
    today = dt.datetime.now(dt.UTC).date()
    term_end(term=price_books[0].terms.get(), ends=today + dt.timedelta(days=9))
    book = price_book_create(name="next", starts=today + dt.timedelta(days=10))
    plan = book.terms.get()
    page = "/staff/price-books/next/"
    assert 'data-testid="term-remove"' in staff.get(page).text
    staff.post(f"{page}add", {"what": "remove", "term": str(plan.pk)})
    assert not book.terms.exists()
    assert PriceBook.objects.get(is_default=True) == price_books[0], "everyone's as before the plan"
    term_end(term=price_books[0].terms.get(), ends=None)

    own = term_create(book=book, starts=today + dt.timedelta(days=1000), tenant=tenant)
    assert staff.delete(f"/api/v1/price-books/next/terms/{own.pk}").status_code == 204
    begun = term_create(book=book, starts=dt.date(2020, 1, 1), ends=dt.date(2020, 2, 1), tenant=tenant)
    refused = staff.delete(f"/api/v1/price-books/next/terms/{begun.pk}")
    assert (refused.status_code, "instead of removing it" in refused.text) == (409, True)
    assert 'data-testid="term-remove"' not in staff.get(page).text
    with pytest.raises(ConflictError, match="'list' has been in force from"):
        term_remove(term=price_books[0].terms.get())
