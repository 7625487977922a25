"""Every REST route. tests/controlplane/test_isolation.py walks this list."""

from __future__ import annotations

from django.urls import path

from controlplane.adapters import api as adapters
from controlplane.billing import api as billing
from controlplane.catalog import api as catalog
from controlplane.deployments import api as deployments
from controlplane.tenants import api as tenants

urlpatterns = [
    path("adapters", adapters.AdaptersApi.as_view(), name="adapters"),
    path("adapters/<str:name>", adapters.AdapterApi.as_view(), name="adapter"),
    path("adapters/<str:name>/pin", adapters.PinApi.as_view(), name="adapter-pin"),
    path("adapters/<str:name>/versions", adapters.VersionsApi.as_view(), name="versions"),
    path("adapters/<str:name>/versions/<int:number>", adapters.VersionApi.as_view(), name="version"),
    path("adapters/<str:name>/aliases", adapters.AliasesApi.as_view(), name="aliases"),
    path("adapters/<str:name>/aliases/<str:alias>", adapters.AliasApi.as_view(), name="alias"),
    path("keys", tenants.ApiKeysApi.as_view(), name="keys"),
    path("keys/<str:public_id>", tenants.ApiKeyApi.as_view(), name="key"),
    path("base-models", catalog.BaseModelsApi.as_view(), name="base-models"),
    path("base-models/<str:name>", catalog.BaseModelApi.as_view(), name="base-model"),
    path("usage", billing.UsageApi.as_view(), name="usage"),
    path("fleet/usage", billing.FleetUsageApi.as_view(), name="fleet-usage"),
    path("tenants", tenants.TenantsApi.as_view(), name="tenants"),
    path("tenants/<str:slug>", tenants.TenantApi.as_view(), name="tenant"),
    path("users", tenants.UsersApi.as_view(), name="users"),
    path("copies", deployments.CopiesApi.as_view(), name="copies"),
    path("copies/<str:copy_id>", deployments.CopyApi.as_view(), name="copy"),
    path("price-books", billing.PriceBooksApi.as_view(), name="price-books"),
    path("price-books/<str:name>", billing.PriceBookApi.as_view(), name="price-book"),
    path("price-books/<str:name>/prices", billing.PricesApi.as_view(), name="prices"),
]
