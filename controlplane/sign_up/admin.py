"""Sign-ups that wait for their link to be opened, for staff."""

from __future__ import annotations

from django.contrib import admin

from controlplane.platform.http.read_only_admin import ReadOnlyAdmin
from controlplane.sign_up.models import SignUp


@admin.register(SignUp)
class SignUpAdmin(ReadOnlyAdmin):
    list_display = ("email", "created_at", "expires_at", "attempted_at", "sent_at")
    search_fields = ("email",)
    exclude = ("nonce",)
