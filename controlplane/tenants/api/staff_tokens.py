"""REST of staff members' personal access tokens. A token cannot create or revoke tokens: a session does."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.platform.http.object_api import ObjectApi, conditional
from controlplane.platform.http.strict import StrictSerializer, validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.models import StaffToken, User
from controlplane.tenants.permissions import StaffSession
from controlplane.tenants.services.staff_tokens import staff_token_create, staff_token_get, staff_token_revoke


class StaffTokenSerializer(serializers.ModelSerializer[StaffToken]):
    class Meta:
        model = StaffToken
        fields = ("public_id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at")


class StaffTokenCreatedSerializer(StaffTokenSerializer):
    token = serializers.CharField(help_text="The secret token. It is shown only once.")

    class Meta:
        model = StaffToken
        fields = (*StaffTokenSerializer.Meta.fields, "token")


class StaffTokenInput(StrictSerializer):
    name = serializers.CharField(max_length=100)
    scope = serializers.ChoiceField(choices=StaffToken.Scope.choices)
    expires_at = serializers.DateTimeField(help_text="Within 366 days.")


class StaffTokensApi(generics.ListAPIView[StaffToken]):
    permission_classes = (StaffSession,)
    serializer_class = StaffTokenSerializer
    queryset = StaffToken.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[StaffToken]:
        return _person(self.request).staff_tokens.all()

    @idempotent()
    @extend_schema(request=StaffTokenInput, responses={201: StaffTokenCreatedSerializer})
    def post(self, request: Request) -> Response:
        """Creates a personal access token for your scripts. Scope `read` allows GET alone."""
        values = validated(StaffTokenInput, request.data)
        token, text = staff_token_create(user=_person(request), **values)
        return Response({**StaffTokenSerializer(token).data, "token": text}, status.HTTP_201_CREATED)


class StaffTokenApi(ObjectApi[StaffToken]):
    permission_classes = (StaffSession,)
    serializer_class = StaffTokenSerializer
    etag_ignores = frozenset({"last_used_at"})

    def get_object(self) -> StaffToken:
        return staff_token_get(user=_person(self.request), public_id=self.kwargs["token_id"])

    @conditional()
    def get(self, request: Request, token_id: str) -> Response:
        return Response(StaffTokenSerializer(self.get_object()).data)

    @conditional()
    @extend_schema(responses={204: None})
    def delete(self, request: Request, token_id: str) -> Response:
        """Revokes the token at once."""
        staff_token_revoke(token=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)


def _person(request: Request) -> User:
    assert isinstance(request.user, User)
    return request.user
