"""REST of price books, for staff: their prices, when they hold, and for whom."""

from __future__ import annotations

import datetime as dt

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.billing.filters import PriceBookFilter
from controlplane.billing.in_force import meter_prices, read_day, terms_on
from controlplane.billing.models import PriceBook, PriceBookTerm
from controlplane.billing.price_list import PriceList
from controlplane.billing.selectors import price_book_get, price_book_list, term_get, term_list
from controlplane.billing.serializers import (
    HostingPriceSerializer,
    InForceSerializer,
    PriceBookInput,
    PriceBookSerializer,
    PriceSerializer,
    TermChange,
    TermInput,
    TermSerializer,
)
from controlplane.billing.services import hosting_price_set, price_book_create, price_set
from controlplane.billing.terms import term_create, term_end, term_remove
from controlplane.platform.http.object_api import RetrieveApi, conditional
from controlplane.platform.http.strict import validated
from controlplane.platform.idempotency.api import idempotent
from controlplane.tenants.permissions import Staff
from controlplane.tenants.selectors import tenant_get


class PriceBooksApi(generics.ListAPIView[PriceBook]):
    permission_classes = (Staff,)
    serializer_class = PriceBookSerializer
    filterset_class = PriceBookFilter

    def get_queryset(self) -> QuerySet[PriceBook]:
        return price_book_list()

    @idempotent()
    @extend_schema(request=PriceBookInput, responses={201: PriceBookSerializer})
    def post(self, request: Request) -> Response:
        """Creates a price book; with `starts` it is in force from that UTC day on.

        Answers 409, naming both books, where another one is in force on some of these days.
        """
        values = validated(PriceBookInput, request.data)
        slug = values.pop("tenant", "")
        book = price_book_create(tenant=tenant_get(slug=slug) if slug else None, **values)
        return Response(PriceBookSerializer(book).data, status.HTTP_201_CREATED)


class PricesInForceApi(APIView):
    permission_classes = (Staff,)

    @extend_schema(
        parameters=[
            OpenApiParameter("day", dt.date, description="UTC day. Defaults to today."),
            OpenApiParameter("tenant", str, description="Tenant id. Defaults to the prices for all tenants."),
        ],
        responses=InForceSerializer,
    )
    def get(self, request: Request) -> Response:
        """Terms of price books around a day, and the price of each meter on it."""
        day = read_day(request.query_params.get("day", ""))
        slug = request.query_params.get("tenant", "")
        tenant = tenant_get(slug=slug).pk if slug else ""
        state = {
            "day": day,
            "tenant": tenant,
            "terms": terms_on(day, tenant=tenant),
            "prices": meter_prices(PriceList.load(), day=day, tenant=tenant),
        }
        return Response(InForceSerializer(state).data)


class PriceBookApi(RetrieveApi[PriceBook]):
    permission_classes = (Staff,)
    serializer_class = PriceBookSerializer

    def get_object(self) -> PriceBook:
        return price_book_get(name=self.kwargs["name"])


class PricesApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=PriceSerializer, responses={201: PriceSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Adds a price of calls from a UTC day on, in nano-units (1e-9) per token and per request."""
        book = price_book_get(name=name)
        price = price_set(book=book, **validated(PriceSerializer, request.data))
        return Response(PriceSerializer(price).data, status.HTTP_201_CREATED)


class HostingPricesApi(APIView):
    permission_classes = (Staff,)

    @idempotent()
    @extend_schema(request=HostingPriceSerializer, responses={201: HostingPriceSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Adds a price of hosting time from a UTC day on: nano-units (1e-9) per adapter-, GPU- or GB-hour."""
        book = price_book_get(name=name)
        price = hosting_price_set(book=book, **validated(HostingPriceSerializer, request.data))
        return Response(HostingPriceSerializer(price).data, status.HTTP_201_CREATED)


class TermsApi(generics.ListAPIView[PriceBookTerm]):
    """Days on which the book is in force, and for whom."""

    permission_classes = (Staff,)
    serializer_class = TermSerializer
    queryset = PriceBookTerm.objects.none()  # tells the schema the model

    def get_queryset(self) -> QuerySet[PriceBookTerm]:
        return term_list(book=price_book_get(name=self.kwargs["name"]))

    @idempotent()
    @extend_schema(request=TermInput, responses={201: TermSerializer})
    def post(self, request: Request, name: str) -> Response:
        """Puts the book in force on UTC days, for everyone or as one tenant's own.

        Answers 409, naming the other book, where one is in force on some of these days.
        """
        values = validated(TermInput, request.data)
        slug = values.pop("tenant", "")
        tenant = tenant_get(slug=slug) if slug else None
        term = term_create(book=price_book_get(name=name), tenant=tenant, **values)
        return Response(TermSerializer(term).data, status.HTTP_201_CREATED)


class TermApi(RetrieveApi[PriceBookTerm]):
    permission_classes = (Staff,)
    serializer_class = TermSerializer

    def get_object(self) -> PriceBookTerm:
        return term_get(book=price_book_get(name=self.kwargs["name"]), term_id=self.kwargs["term"])

    @conditional()
    @extend_schema(request=TermChange)
    def patch(self, request: Request, name: str, term: int) -> Response:
        """Changes the last day of a term."""
        values = validated(TermChange, request.data)
        found = term_end(term=self.get_object(), ends=values["ends"])
        return Response(TermSerializer(found).data)

    @conditional()
    def delete(self, request: Request, name: str, term: int) -> Response:
        """Deletes a planned term; a term that has begun can only be ended."""
        term_remove(term=self.get_object())
        return Response(status=status.HTTP_204_NO_CONTENT)
