"""Logging in."""

from __future__ import annotations

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView


class Login(LoginView):
    """E-mail and password; who is in already goes on."""

    template_name = "console/login.html"
    authentication_form = AuthenticationForm
    redirect_authenticated_user = True
