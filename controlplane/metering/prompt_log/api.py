"""REST of stored prompts: a tenant's setting, and the prompt of one request."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.metering.prompt_log.models import PromptLog
from controlplane.metering.prompt_log.selectors import kept_until, prompt_log_get
from controlplane.metering.prompt_log.services import MOST_DAYS, kept_read, prompt_log_end, prompt_log_set
from controlplane.metering.requests import request_attempts
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.tenants.models import Tenant
from controlplane.tenants.permissions import request_access, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission


class PromptLogSerializer(StrictSerializer):
    days = serializers.IntegerField(min_value=1, max_value=MOST_DAYS, help_text="Retention of each prompt.")
    begun_at = serializers.DateTimeField(read_only=True)


class PromptLogApi(RetrieveApi[PromptLog]):
    """Since when prompts and answers are stored, and for how long; 404 while they are not."""

    permission_classes = (tenant_may(Permission.PROMPTS_READ, Permission.PROMPTS_WRITE),)
    serializer_class = PromptLogSerializer

    def get_object(self) -> PromptLog:
        return prompt_log_get(tenant=request_tenant(self.request))

    def row_to_lock(self, found: PromptLog) -> Tenant:
        return found.tenant

    @conditional()
    def put(self, request: Request) -> Response:
        """Stores prompts and answers of requests from now on, or changes for how many days."""
        values = validated(PromptLogSerializer, request.data)
        log = prompt_log_set(tenant=request_tenant(request), begun_by=request_user(request), **values)
        return Response(PromptLogSerializer(log).data)

    @conditional()
    def delete(self, request: Request) -> Response:
        """Stops storing prompts, and deletes the stored ones at once."""
        prompt_log_end(tenant=request_tenant(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class KeptPromptSerializer(serializers.Serializer[Any]):
    request_id = serializers.CharField()
    at = serializers.DateTimeField()
    kept_until = serializers.DateTimeField()
    path = serializers.CharField(help_text="As /v1/chat/completions.")
    request = serializers.CharField(help_text="Request body as sent.")
    answer = serializers.CharField(help_text="Response as sent to the client; for a stream, its events.")
    cut = serializers.BooleanField(help_text="True if request or response was longer than 256 KiB.")


class KeptPromptApi(APIView):
    permission_classes = (tenant_may(Permission.PROMPTS_READ),)

    @extend_schema(responses=KeptPromptSerializer)
    def get(self, request: Request, request_id: str) -> Response:
        """The stored prompt and answer of a request. Each read is recorded in the audit log."""
        access, tenant = request_access(request), request_tenant(request)
        if access and access.project is not None:
            # Raises NotFoundError if the request is not of the key's project.
            request_attempts(tenant=tenant.pk, request_id=request_id, project=access.project)
        kept, found = kept_read(tenant=tenant, request_id=request_id)
        data = {
            "request_id": kept.request_id,
            "at": kept.at,
            "kept_until": kept_until(kept, prompt_log_get(tenant=tenant)),
            "path": found.path,
            "request": found.request,
            "answer": found.answer,
            "cut": found.cut,
        }
        return Response(KeptPromptSerializer(data).data)
