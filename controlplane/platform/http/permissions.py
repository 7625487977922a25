"""The permission of a view that states none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

if TYPE_CHECKING:  # views import the default permissions
    from rest_framework.views import APIView


class Nobody(BasePermission):
    """Refuses everyone: each view must state who may call it."""

    message = "this route has no permission, so access is refused"

    def has_permission(self, request: Request, view: APIView) -> bool:
        return False
