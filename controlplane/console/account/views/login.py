"""Logging in: by e-mail and password, or by the operator's identity provider."""

from __future__ import annotations

import logging
from typing import Any

from allauth.account.views import LoginView
from allauth.socialaccount.providers.openid_connect import views as openid_connect
from django.contrib.auth.views import LogoutView
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from redis.exceptions import RedisError
from requests.exceptions import RequestException

from controlplane.sign_up.selectors import sign_up_offered

logger = logging.getLogger(__name__)


class Login(LoginView):  # type: ignore[misc]
    """allauth's log-in, which limits attempts in Redis and requires the second factor if there is one."""

    template_name = "account/login.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "sign_up_offered": sign_up_offered()}

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().dispatch(request, *args, **kwargs)
        except RedisError as error:
            # Without counting, attempts would be unlimited.
            logger.warning("nobody can log in: attempts cannot be counted: %s", error)
            return render(request, "account/unavailable.html", status=503)


class Logout(LogoutView):
    """Django's log-out, which also clears the browser's cache, so that cached pages cannot be viewed."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response = super().dispatch(request, *args, **kwargs)
        response["Clear-Site-Data"] = '"cache"'
        return response


@never_cache
@require_POST
def sso(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Redirect to the identity provider, by an intermediate page of ours.

    The content security policy lets a form's answer redirect only to this server; a page may link elsewhere.
    """
    try:
        response: HttpResponse = openid_connect.login(request, provider_id)
    except RequestException as error:
        logger.warning("the identity provider cannot be asked: %s", error)
        return render(request, "account/unavailable.html", {"sso": True}, status=503)
    if response.status_code != 302:
        return response
    return render(request, "account/to_provider.html", {"url": response["Location"]})


def nothing(request: HttpRequest, **_arguments: str) -> HttpResponse:
    """Answer 404 where allauth would let people sign up or change their address."""
    raise Http404("there is no such page here")
