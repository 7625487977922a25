"""Every URL of the control plane."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularSwaggerView

from controlplane.console.account.views import login
from controlplane.platform.http.not_found import api_not_found
from controlplane.platform.http.openapi import OpenApiDocument

# Staff log in as everybody does: attempts are counted and a second factor is asked for.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/v1/openapi.json", OpenApiDocument.as_view(), name="openapi"),
    path("api/v1/", include(("controlplane.api_urls", "api"))),
    path(
        "api/docs/",
        SpectacularSwaggerView.as_view(url_name="openapi", template_name="api_docs.html"),
        name="docs",
    ),
    re_path("^api/", api_not_found),
    path("accounts/login/", login.Login.as_view()),
    *(path(f"accounts/{closed}", login.nothing) for closed in ("signup/", "email/", "3rdparty/signup/")),
    path("accounts/oidc/<str:provider_id>/login/", login.sso),
    path("accounts/", include("allauth.urls")),
    path("", include("controlplane.console.urls")),
]
