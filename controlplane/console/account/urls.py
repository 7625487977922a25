"""URLs of logging in, members, webhooks and the audit log."""

from __future__ import annotations

from django.urls import path

from controlplane.console.account.views import audit, invitations, members, sign_up, webhooks
from controlplane.console.account.views.login import Login, Logout

tenant_urls = [
    path("members/", members.index, name="members"),
    path("members/<int:user_id>/role", members.set_role, name="member-role"),
    path("members/<int:user_id>/remove", members.remove, name="member-remove"),
    path("invitations/<int:invitation_id>/resend", members.resend, name="invitation-resend"),
    path("invitations/<int:invitation_id>/revoke", members.revoke, name="invitation-revoke"),
    path("webhooks/", webhooks.index, name="webhooks"),
    path("webhooks/<slug:endpoint_id>/", webhooks.detail, name="webhook"),
    path("webhooks/<slug:endpoint_id>/rotate", webhooks.rotate, name="webhook-rotate"),
    path("webhooks/<slug:endpoint_id>/test", webhooks.test, name="webhook-test"),
    path("webhooks/<slug:endpoint_id>/delete", webhooks.delete, name="webhook-delete"),
    path(
        "webhooks/<slug:endpoint_id>/deliveries/<int:delivery_id>/resend",
        webhooks.resend,
        name="webhook-resend",
    ),
    path("audit/", audit.index, name="audit"),
    path("audit/export", audit.export, name="audit-export"),
]
urls = [
    path("login", Login.as_view(), name="login"),
    path("logout", Logout.as_view(), name="logout"),
    path("sign-up", sign_up.begin, name="sign-up"),
    path("sign-up/<str:token>", sign_up.confirm, name="sign-up-confirm"),
    path("invitations/<str:token>", invitations.accept, name="invitation"),
]
