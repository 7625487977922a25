"""The web UI's URLs. Each names its tenant, so that no browser tab acts for another tenant."""

from __future__ import annotations

from django.urls import include, path

from controlplane.console import pages
from controlplane.console.account import urls as account
from controlplane.console.adapters import urls as adapters
from controlplane.console.billing import urls as billing
from controlplane.console.deployments import urls as deployments
from controlplane.console.home import urls as home
from controlplane.console.keys import urls as keys
from controlplane.console.monitoring import urls as monitoring
from controlplane.console.optimization import urls as optimization
from controlplane.console.staff import urls as staff
from controlplane.console.usage import urls as usage

app_name = "console"

tenant_urls = [
    *adapters.tenant_urls,
    *billing.tenant_urls,
    *usage.tenant_urls,
    *monitoring.tenant_urls,
    *keys.tenant_urls,
    *account.tenant_urls,
    *home.tenant_urls,
]
urlpatterns = [
    path("", pages.entry, name="entry"),
    *billing.urls,
    *usage.urls,
    *monitoring.urls,
    *deployments.urls,
    *optimization.urls,
    *staff.urls,
    *home.urls,
    *account.urls,
    path("t/<slug:tenant>/", include(tenant_urls)),
]
