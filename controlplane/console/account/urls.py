"""URLs of logging in, members, webhooks and the audit log."""

from __future__ import annotations

from typing import Final

from django.urls import path

from controlplane.console.account.views import audit, invitations, mailbox, members, sign_up, webhooks
from controlplane.console.account.views.login import Login, Logout

_WEBHOOK: Final = "webhooks/<slug:endpoint_id>/"

tenant_urls = [
    path("members/", members.index, name="members"),
    path("members/<int:user_id>/role", members.set_role, name="member-role"),
    path("members/<int:user_id>/remove", members.remove, name="member-remove"),
    path("invitations/<int:invitation_id>/resend", members.resend, name="invitation-resend"),
    path("invitations/<int:invitation_id>/revoke", members.revoke, name="invitation-revoke"),
    path("webhooks/", webhooks.index, name="webhooks"),
    path(_WEBHOOK, webhooks.detail, name="webhook"),
    path(f"{_WEBHOOK}rotate", webhooks.rotate, name="webhook-rotate"),
    path(f"{_WEBHOOK}test", webhooks.test, name="webhook-test"),
    path(f"{_WEBHOOK}delete", webhooks.delete, name="webhook-delete"),
    path(f"{_WEBHOOK}deliveries/<int:delivery_id>/resend", webhooks.resend, name="webhook-resend"),
    path("audit/", audit.index, name="audit"),
    path("audit/export", audit.export, name="audit-export"),
]
urls = [
    path("login", Login.as_view(), name="login"),
    path("logout", Logout.as_view(), name="logout"),
    path("mailbox/", mailbox.index, name="mailbox"),
    path("sign-up", sign_up.begin, name="sign-up"),
    path("sign-up/<str:token>", sign_up.confirm, name="sign-up-confirm"),
    path("invitations/<str:token>", invitations.accept, name="invitation"),
]
