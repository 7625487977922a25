"""REST of projects and service accounts."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.filters import ProjectFilter, ServiceAccountFilter
from controlplane.tenants.models import Project, ServiceAccount
from controlplane.tenants.permissions import request_access, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission, Role
from controlplane.tenants.selectors import (
    project_get,
    project_list,
    service_account_get,
    service_account_list,
)
from controlplane.tenants.services import (
    project_archive,
    project_create,
    project_rename,
    service_account_create,
    service_account_disable,
    service_account_set_role,
)


class ProjectSerializer(StrictSerializer, serializers.ModelSerializer[Project]):
    class Meta:
        model = Project
        fields = ("slug", "name", "created_at", "archived_at")
        read_only_fields = ("created_at", "archived_at")


class ProjectChangesInput(StrictSerializer):
    name = serializers.CharField(max_length=200)


class ProjectsApi(generics.ListAPIView[Project]):
    permission_classes = (tenant_may(Permission.PROJECTS_READ, Permission.PROJECTS_WRITE),)
    serializer_class = ProjectSerializer
    filterset_class = ProjectFilter
    queryset = Project.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Project]:
        return project_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=ProjectSerializer, responses={201: ProjectSerializer})
    def post(self, request: Request) -> Response:
        """Makes a project. Its slug stands in usage, so it never changes."""
        project = project_create(tenant=request_tenant(request), **validated(ProjectSerializer, request.data))
        return Response(ProjectSerializer(project).data, status.HTTP_201_CREATED)


class ProjectApi(RetrieveApi[Project]):
    permission_classes = (tenant_may(Permission.PROJECTS_READ, Permission.PROJECTS_WRITE),)
    serializer_class = ProjectSerializer

    def get_object(self) -> Project:
        return project_get(tenant=request_tenant(self.request), slug=self.kwargs["project"])

    @conditional()
    @extend_schema(request=ProjectChangesInput)
    def patch(self, request: Request, project: str) -> Response:
        """Gives the project another name."""
        renamed = project_rename(project=self.get_object(), **validated(ProjectChangesInput, request.data))
        return Response(ProjectSerializer(renamed).data)

    @conditional()
    def delete(self, request: Request, project: str) -> Response:
        """Archives the project, once it has neither live keys nor service accounts. Usage stays."""
        project_archive(project=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


class ServiceAccountSerializer(serializers.ModelSerializer[ServiceAccount]):
    project = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]

    class Meta:
        model = ServiceAccount
        fields = ("name", "project", "role", "created_at", "disabled_at")


class ServiceAccountInput(StrictSerializer):
    name = serializers.CharField(max_length=63)
    project = serializers.CharField(max_length=63, default=Project.DEFAULT, help_text="Slug.")
    role = serializers.ChoiceField(choices=Role.choices)


class ServiceAccountChangesInput(StrictSerializer):
    role = serializers.ChoiceField(choices=Role.choices)


class ServiceAccountsApi(generics.ListAPIView[ServiceAccount]):
    permission_classes = (tenant_may(Permission.SERVICE_ACCOUNTS_READ, Permission.SERVICE_ACCOUNTS_WRITE),)
    serializer_class = ServiceAccountSerializer
    filterset_class = ServiceAccountFilter
    queryset = ServiceAccount.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[ServiceAccount]:
        return service_account_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=ServiceAccountInput, responses={201: ServiceAccountSerializer})
    def post(self, request: Request) -> Response:
        """Makes a service account; `POST /keys` with its name makes its keys."""
        values = validated(ServiceAccountInput, request.data)
        account = service_account_create(
            project=project_get(tenant=request_tenant(request), slug=values.pop("project")),
            by=request_access(request),
            created_by=request_user(request),
            **values,
        )
        return Response(ServiceAccountSerializer(account).data, status.HTTP_201_CREATED)


class ServiceAccountApi(RetrieveApi[ServiceAccount]):
    permission_classes = (tenant_may(Permission.SERVICE_ACCOUNTS_READ, Permission.SERVICE_ACCOUNTS_WRITE),)
    serializer_class = ServiceAccountSerializer

    def get_object(self) -> ServiceAccount:
        return service_account_get(tenant=request_tenant(self.request), name=self.kwargs["account"])

    @conditional()
    @extend_schema(request=ServiceAccountChangesInput)
    def patch(self, request: Request, account: str) -> Response:
        """Changes the account's role, in force with its keys' next call."""
        account_found, values = self.get_object(), validated(ServiceAccountChangesInput, request.data)
        changed = service_account_set_role(account=account_found, by=request_access(request), **values)
        return Response(ServiceAccountSerializer(changed).data)

    @conditional()
    def delete(self, request: Request, account: str) -> Response:
        """Disables the account and revokes its keys: within a second no gateway takes one."""
        service_account_disable(account=self.get_object(), by=request_access(request))
        return Response(status=status.HTTP_204_NO_CONTENT)
