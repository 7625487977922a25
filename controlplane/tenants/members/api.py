"""REST of a tenant's members and invitations."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.filters import InvitationFilter, MemberFilter
from controlplane.tenants.members.models import Invitation
from controlplane.tenants.members.selectors import invitation_get, invitation_list, member_get, member_list
from controlplane.tenants.members.services import (
    invitation_create,
    invitation_resend,
    invitation_revoke,
    member_remove,
    member_set_role,
)
from controlplane.tenants.models import Membership
from controlplane.tenants.permissions import request_access, request_tenant, request_user, tenant_may
from controlplane.tenants.roles import Permission, Role


class MemberSerializer(serializers.ModelSerializer[Membership]):
    user_id = serializers.IntegerField()
    email = serializers.EmailField(source="user.email")

    class Meta:
        model = Membership
        fields = ("user_id", "email", "role", "created_at")


class RoleInput(StrictSerializer):
    role = serializers.ChoiceField(choices=Role.choices)


class InvitationSerializer(StrictSerializer, serializers.ModelSerializer[Invitation]):
    class Meta:
        model = Invitation
        fields = ("id", "email", "role", "created_at", "expires_at", "sent_at")
        read_only_fields = ("created_at", "expires_at", "sent_at")


class MembersApi(generics.ListAPIView[Membership]):
    permission_classes = (tenant_may(Permission.MEMBERS_READ),)
    serializer_class = MemberSerializer
    filterset_class = MemberFilter
    queryset = Membership.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Membership]:
        return member_list(tenant=request_tenant(self.request))


class MemberApi(RetrieveApi[Membership]):
    permission_classes = (tenant_may(Permission.MEMBERS_READ, Permission.MEMBERS_WRITE),)
    serializer_class = MemberSerializer

    def get_object(self) -> Membership:
        return member_get(tenant=request_tenant(self.request), user_id=self.kwargs["user_id"])

    @conditional()
    @extend_schema(request=RoleInput)
    def patch(self, request: Request, user_id: int) -> Response:
        """Gives the member another role. Nobody gives, or takes, a role that has more than their own."""
        member, values = self.get_object(), validated(RoleInput, request.data)
        member = member_set_role(tenant=member.tenant, user_id=user_id, by=request_access(request), **values)
        return Response(MemberSerializer(member).data)

    @conditional()
    def delete(self, request: Request, user_id: int) -> Response:
        """Removes the member and ends their sessions. The last owner stays."""
        member_remove(tenant=request_tenant(request), user_id=user_id, by=request_access(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class InvitationsApi(generics.ListAPIView[Invitation]):
    permission_classes = (tenant_may(Permission.MEMBERS_READ, Permission.MEMBERS_WRITE),)
    serializer_class = InvitationSerializer
    filterset_class = InvitationFilter
    queryset = Invitation.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[Invitation]:
        return invitation_list(tenant=request_tenant(self.request))

    @idempotent()
    @extend_schema(request=InvitationSerializer, responses={201: InvitationSerializer})
    def post(self, request: Request) -> Response:
        """Sends an e-mail address a link to join, good once and for seven days."""
        invitation = invitation_create(
            tenant=request_tenant(request),
            by=request_access(request),
            invited_by=request_user(request),
            **validated(InvitationSerializer, request.data),
        )
        return Response(InvitationSerializer(invitation).data, status.HTTP_201_CREATED)


class InvitationApi(RetrieveApi[Invitation]):
    permission_classes = (tenant_may(Permission.MEMBERS_READ, Permission.MEMBERS_WRITE),)
    serializer_class = InvitationSerializer

    def get_object(self) -> Invitation:
        tenant = request_tenant(self.request)
        return invitation_get(tenant=tenant, invitation_id=self.kwargs["invitation_id"])

    @conditional()
    def delete(self, request: Request, invitation_id: int) -> Response:
        """Revokes the invitation; its link stops working immediately."""
        invitation_revoke(invitation=self.get_object(), by=request_access(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class InvitationResendApi(APIView):
    permission_classes = (tenant_may(Permission.MEMBERS_READ, Permission.MEMBERS_WRITE),)

    @idempotent()
    @extend_schema(request=None, responses={200: InvitationSerializer})
    def post(self, request: Request, invitation_id: int) -> Response:
        """Sends a new link that is valid for seven days; the previous one stops working."""
        found = invitation_get(tenant=request_tenant(request), invitation_id=invitation_id)
        sent = invitation_resend(invitation=found, by=request_access(request))
        return Response(InvitationSerializer(sent).data)
