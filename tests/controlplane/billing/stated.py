"""Which permission each route and page about money needs; `test_isolation` compares views with it."""

from __future__ import annotations

STAFF = "staff"
BILLING_ROUTES: dict[str, dict[str, str]] = {
    "usage": {"get": "usage.read"},
    "fleet-usage": {"get": STAFF},
    "price-books": {"get": STAFF, "post": STAFF},
    "price-book": {"get": STAFF},
    "prices": {"post": STAFF},
    "hosting-prices": {"post": STAFF},
    "price-book-terms": {"get": STAFF, "post": STAFF},
    "price-book-term": {"get": STAFF, "patch": STAFF},
    "billing": {"get": "billing.read"},
    "journal": {"get": "billing.read"},
    "credits": {"get": "billing.read"},
    "invoices": {"get": "billing.read"},
    "invoice": {"get": "billing.read"},
    "invoice-lines": {"get": "billing.read"},
    "invoice-file": {"get": "billing.read"},
    "fleet-invoices": {"get": STAFF},
    "fleet-invoice-file": {"get": STAFF},
    "invoice-finalize": {"post": STAFF},
    "tenant-billing": {"get": STAFF},
    "tenant-journal": {"get": STAFF},
    "entry-reversal": {"post": STAFF},
    "tenant-credits": {"get": STAFF, "post": STAFF},
    "tenant-payments": {"post": STAFF},
    "tenant-invoices": {"post": STAFF},
}
BILLING_PAGES: dict[str, dict[str, str]] = {
    "usage": {"get": "usage.read"},
    "usage-csv": {"get": "usage.read"},
    "hosting": {"get": "billing.read"},
    "billing": {"get": "billing.read"},
    "invoice": {"get": "billing.read"},
    "invoice-file": {"get": "billing.read"},
}
