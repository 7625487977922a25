"""LMI's adapter management API, with and without its `/models/{model}` prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from contracts.openai.kinds import Flag, Text
from worker_engine.adapters.registry import NAME_PATTERN, RegisteredAdapter
from worker_engine.errors import InvalidRequest, ModelNotFound
from worker_engine.http.routes import SERVICE, Route
from worker_engine.openai.body import parse_object
from worker_engine.openai.fields import Fields
from worker_engine.sagemaker.errors import in_management_form

DEFAULT_LIMIT: Final = 100
_NAME: Final = Text(max_length=256)
_SRC: Final = Text(max_length=4096)
_PRELOAD: Final = Flag(default=True)
_PIN: Final = Flag()
_REGISTER: Final = {"name": _NAME, "src": _SRC, "preload": _PRELOAD, "pin": _PIN}
_UPDATE: Final = {"src": _SRC, "preload": _PRELOAD, "pin": _PIN}
_LIST: Final = ("limit", "next_page_token")


async def register(request: web.Request) -> web.Response:
    """POST /adapters: register an adapter; arguments come from the query, as in LMI, or from a JSON body."""
    _demand_model(request)
    fields = await _arguments(request)
    fields.refuse_others(_REGISTER)
    name = fields.require("name", _NAME)
    await request.app[SERVICE].registry.register(
        name,
        fields.require("src", _SRC),
        preload=fields.read("preload", _PRELOAD),
        pin=fields.read("pin", _PIN),
    )
    return _status(f"Adapter {name} registered")


async def update(request: web.Request) -> web.Response:
    """POST /adapters/{name}/update: read the source again, and pin or unpin the content."""
    _demand_model(request)
    registry, name = request.app[SERVICE].registry, request.match_info["name"]
    old = registry.get(name, param="name")
    fields = await _arguments(request)
    fields.refuse_others(_UPDATE)
    src = fields.require("src", _SRC) if "src" in fields else old.src
    pin = fields.read("pin", _PIN) if "pin" in fields else old.pin
    await registry.register(name, src, preload=fields.read("preload", _PRELOAD), pin=pin, replace=True)
    return _status(f"Adapter {name} updated")


async def describe(request: web.Request) -> web.Response:
    """GET /adapters/{name}: describe one adapter."""
    _demand_model(request)
    return web.json_response(
        _to_dict(request.app[SERVICE].registry.get(request.match_info["name"], param="name"))
    )


async def unregister(request: web.Request) -> web.Response:
    """DELETE /adapters/{name}: unregister an adapter."""
    _demand_model(request)
    name = request.match_info["name"]
    request.app[SERVICE].registry.unregister(name, param="name")
    return _status(f"Adapter {name} unregistered")


async def list_adapters(request: web.Request) -> web.Response:
    """GET /adapters: list adapters, one page at a time."""
    _demand_model(request)
    fields = Fields(dict(request.query))
    fields.refuse_others(_LIST)
    limit, first = _page(request, "limit", DEFAULT_LIMIT, 1), _page(request, "next_page_token", 0, 0)
    items = list(request.app[SERVICE].registry)
    answer: dict[str, Any] = {"adapters": [_to_dict(item) for item in items[first : first + limit]]}
    if first + limit < len(items):
        answer["nextPageToken"] = str(first + limit)
    return web.json_response(answer)


def _page(request: web.Request, name: str, default: int, low: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) >= low):
        raise InvalidRequest(f"{name} must be an integer from {low}, got {text[:60]!r}", param=name)
    return int(text)


async def _arguments(request: web.Request) -> Fields:
    """Return the arguments of query and body; an argument in both is refused."""
    body = parse_object(raw) if (raw := await request.read()) else {}
    query: dict[str, Any] = {}
    for name, text in request.query.items():
        if name in query or name in body:
            raise InvalidRequest(f"{name[:60]} is given twice", param=name[:60])
        flag = {"true": True, "false": False}.get(text.lower()) if name in ("preload", "pin") else None
        query[name] = text if flag is None else flag
    return Fields({**query, **body})


def _demand_model(request: web.Request) -> None:
    model = request.match_info.get("model", served := request.app[SERVICE].config.served_model_name)
    if model != served:
        raise ModelNotFound(f"the model {model[:256]!r} was not found; this worker serves {served!r}")


def _to_dict(item: RegisteredAdapter) -> Mapping[str, Any]:
    return {"name": item.name, "src": item.src, "pin": item.pin, "sha256": item.ref.sha256}


def _status(text: str) -> web.Response:
    return web.json_response({"status": text})


_NAME_SCHEMA: Final = {"type": "string", "pattern": f"^{NAME_PATTERN}$"}
_QUERY: Final = {"preload": {"type": "boolean"}, "pin": {"type": "boolean"}}


def _routes(prefix: str) -> tuple[Route, ...]:
    one = f"{prefix}/adapters/{{name}}"
    integer = {"type": "integer", "maximum": 999_999_999}
    page = {"limit": {**integer, "minimum": 1}, "next_page_token": {**integer, "minimum": 0}}
    form = in_management_form
    return (
        Route("GET", f"{prefix}/adapters", form(list_adapters), "Registered adapters", query=page),
        Route(
            "POST",
            f"{prefix}/adapters",
            form(register),
            "Register an adapter",
            query={"name": _NAME_SCHEMA, "src": {"type": "string", "maxLength": 4096}, **_QUERY},
            required_query=("name", "src"),
        ),
        Route("GET", one, form(describe), "One adapter"),
        Route("DELETE", one, form(unregister), "Forget an adapter"),
        Route(
            "POST",
            f"{one}/update",
            form(update),
            "Read an adapter anew; pin it or let it go",
            query={"src": {"type": "string", "maxLength": 4096}, **_QUERY},
        ),
    )


ROUTES: Final = (*_routes(""), *_routes("/models/{model}"))
