"""REST API of canary rollouts."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.adapters.models import Adapter
from controlplane.adapters.selectors import adapter_get
from controlplane.canaries.models import Rollout
from controlplane.canaries.selectors import rollout_get, rollout_list
from controlplane.canaries.serializers import RolloutInput, RolloutSerializer
from controlplane.canaries.services import (
    rollout_abort,
    rollout_pause,
    rollout_promote,
    rollout_resume,
    rollout_start,
)
from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import request_tenant, tenant_may
from controlplane.tenants.roles import Permission


class RolloutsApi(generics.ListAPIView[Rollout]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = RolloutSerializer
    queryset = Rollout.objects.none()

    def adapter(self) -> Adapter:
        return adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])

    def get_queryset(self) -> QuerySet[Rollout]:
        found = rollout_list(adapter=self.adapter(), alias=self.kwargs["alias"])
        return found.prefetch_related("decisions")

    @idempotent()
    @extend_schema(request=RolloutInput, responses={201: RolloutSerializer})
    def post(self, request: Request, name: str, alias: str) -> Response:
        """Starts a canary rollout of the alias, which is promoted or rolled back by its usage."""
        adapter = self.adapter()
        data = RolloutInput(data=request.data)
        data.is_valid(raise_exception=True)
        rollout = rollout_start(adapter=adapter, alias=alias, **data.validated_data)
        return Response(RolloutSerializer(rollout).data, status.HTTP_201_CREATED)


class _OneRollout(ObjectApi[Rollout]):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)
    serializer_class = RolloutSerializer

    def get_object(self) -> Rollout:
        adapter = adapter_get(tenant=request_tenant(self.request), name=self.kwargs["name"])
        return rollout_get(adapter=adapter, alias=self.kwargs["alias"], number=self.kwargs["rollout"])

    def _response(self) -> Response:
        return Response(RolloutSerializer(self.get_object()).data)


class RolloutApi(_OneRollout):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ),)

    @conditional()
    def get(self, request: Request, name: str, alias: str, rollout: int) -> Response:
        """Returns the rollout with all decisions and their figures."""
        return self._response()


class RolloutPauseApi(_OneRollout):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=RolloutSerializer)
    def post(self, request: Request, name: str, alias: str, rollout: int) -> Response:
        """Pauses the rollout: no more decisions, the split stays."""
        rollout_pause(rollout=self.get_object())
        return self._response()


class RolloutResumeApi(_OneRollout):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=RolloutSerializer)
    def post(self, request: Request, name: str, alias: str, rollout: int) -> Response:
        """Resumes the rollout; requests from now on count."""
        rollout_resume(rollout=self.get_object())
        return self._response()


class RolloutAbortApi(_OneRollout):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=RolloutSerializer)
    def post(self, request: Request, name: str, alias: str, rollout: int) -> Response:
        """Aborts the rollout: all callers get the stable version."""
        rollout_abort(rollout=self.get_object())
        return self._response()


class RolloutPromoteApi(_OneRollout):
    permission_classes = (tenant_may(Permission.ADAPTERS_READ, Permission.ADAPTERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses=RolloutSerializer)
    def post(self, request: Request, name: str, alias: str, rollout: int) -> Response:
        """Promotes the canary to all callers, whatever the figures."""
        rollout_promote(rollout=self.get_object())
        return self._response()
