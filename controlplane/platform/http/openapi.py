"""The OpenAPI document, at a permanent URL."""

from __future__ import annotations

import functools

from django.http import HttpRequest, HttpResponse
from django.views import View
from drf_spectacular.contrib.django_filters import DjangoFilterExtension
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer2


class OpenApiDocument(View):
    """OpenAPI 3.1 of the whole REST API, public. Generated once per process, since it cannot change."""

    http_method_names = ("get", "head", "options")

    def get(self, request: HttpRequest) -> HttpResponse:
        response = HttpResponse(_document(), content_type="application/vnd.oai.openapi+json;version=3.1")
        response["Cache-Control"] = "public, max-age=300"
        return response


@functools.cache
def _document() -> bytes:
    # No filter is about geometry: the search for GDAL would start 36 processes, the C compiler among them.
    DjangoFilterExtension._has_gis = False  # type: ignore[attr-defined]
    generator = SchemaGenerator(api_version="v1")  # type: ignore[no-untyped-call]
    schema = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    rendered: bytes = OpenApiJsonRenderer2().render(schema)
    return rendered
