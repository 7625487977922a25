"""Servers that already run and speak OpenAI's API, such as vLLM: registered, and given adapters.

vLLM loads and unloads adapters by `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, and lists them with
the base model in `/v1/models`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

import httpx
from django.conf import settings

from contracts.adapters.reference import AdapterRef, EngineName
from contracts.capabilities.vllm import version_of
from contracts.errors import ContractError
from contracts.server_credentials import ServerCredentials
from controlplane.deployments.capabilities import RunningEngine
from controlplane.deployments.models import Deployment, Target
from controlplane.deployments.provisioners.base import (
    Desired,
    Endpoint,
    Observation,
    PlacedAdapter,
    Progress,
    ProvisioningError,
    Resource,
    State,
    Step,
    ThrottledError,
)
from controlplane.platform.http.tls import tls_context
from controlplane.routes.selectors import route_adapters_of

_SECONDS: Final = httpx.Timeout(60.0, connect=3.0)
"""Loading an adapter reads its files; it must not outlast a lease."""
_LIST_TIMEOUT: Final = httpx.Timeout(5.0, connect=3.0)


@dataclass(frozen=True, slots=True)
class Server:
    """One server.

    Attributes:
        models: names of its models; None if it does not answer.
        silent: it is only slow.
        engine: as the server tells it, without its largest rank; None for another server, or a silent one.
    """

    url: str
    models: frozenset[str] | None
    reason: str = ""
    silent: bool = False
    engine: RunningEngine | None = None

    def serves(self, name: str) -> bool:
        """Return True if the server answers and lists a model of this name."""
        return self.models is not None and name in self.models

    @property
    def adapters(self) -> frozenset[str]:
        """Our adapters on the server, recognized by their engine names."""
        return frozenset(name for name in self.models or () if _is_adapter(name))


class OpenAIHttpProvisioner:
    """Registers running servers and places adapters on them.

    Adapters that gateways had loaded for a request are left alone while a route names them.

    Args:
        before: servers that a rollout moves away from.
        credentials: of the servers, also published for gateways.
        routed: engine names that a route leads to, placed or not.
        heartbeat: called before each request to a server; see `Lease.renew`.
    """

    def __init__(
        self,
        urls: tuple[str, ...],
        desired: Desired,
        *,
        credentials: ServerCredentials,
        routed: frozenset[str],
        heartbeat: Callable[[], None],
        before: tuple[str, ...] = (),
    ) -> None:
        self._urls, self._desired, self._routed, self._heartbeat = urls, desired, routed, heartbeat
        self._before = () if desired.stage is None else before
        self._wanted = {ref.name: ref for ref in desired.adapters}
        self._credentials = credentials
        headers = credentials.request_headers(settings.GRAFTWORK.openai_http_key)
        self._http = httpx.Client(headers=headers, timeout=_SECONDS, trust_env=False, verify=tls_context())
        self._refused: dict[str, str] = {}

    @classmethod
    def from_target(cls, target: Target, desired: Desired, *, heartbeat: Callable[[], None]) -> Self:
        routes = route_adapters_of(base_model=desired.base_model)
        routed = frozenset(ref.name for route in routes for ref in route.versions.values())
        own, stage = tuple(target.urls), desired.stage
        before = (stage.before.urls or own) if stage is not None else ()
        return cls(
            desired.urls or own,
            desired,
            credentials=target.credentials,
            routed=routed,
            heartbeat=heartbeat,
            before=before,
        )

    def observe(self) -> Observation:
        stage = self._desired.stage
        urls = self._urls if stage is None else self._urls[: stage.target_copies]
        current = [self._server(url) for url in urls]
        others = [self._server(url) for url in self._before if url not in self._urls]
        there = [server for server in [*current, *others] if server.serves(self._desired.served_name)]
        away = [server for server in current if server not in there]
        loaded = frozenset[str]().union(*(server.adapters for server in there))
        adapters = {name: self._adapter(name, there) for name in {*self._wanted, *loaded}}
        missing = [name for name in self._wanted if adapters[name].state is not State.READY]
        surplus = self._surplus(loaded)
        routed, ready = self._routed_servers(current, others, there)
        whole = not away and len(current) == len(self._urls)
        base = {"base": self._desired.served_name}
        return Observation(
            resources=tuple(
                Resource(
                    "server",
                    server.url,
                    State.READY if server in there else State.STARTING,
                    server.reason,
                    has=base if server in there else {},
                    stale=server in others,
                )
                for server in [*current, *others]
            ),
            endpoints=tuple(self._route_endpoint(server) for server in routed),
            adapters=adapters,
            waiting="; ".join(f"{server.url}: {server.reason}" for server in away),
            complete=whole and not missing and not surplus,
            copies_complete=whole,
            # An unreachable server's adapters are lost with its process.
            empty=not loaded,
            progress=Progress(ready, frozenset(server.url for server in routed if server in current)),
            detail=there,
        )

    def apply(self, seen: Observation) -> Iterator[Step]:
        for server in seen.detail:
            for name, ref in self._wanted.items():
                if name not in server.adapters:
                    yield self._load(server, ref)
            for name in sorted(self._surplus(server.adapters)):
                yield self._unload(server, name, "no route leads to it")

    def remove(self, seen: Observation) -> Iterator[Step]:
        for server in seen.detail:
            for name in sorted(server.adapters):
                yield self._unload(server, name, "the deployment is being removed")

    def close(self) -> None:
        self._http.close()

    def _routed_servers(
        self, current: list[Server], others: list[Server], there: list[Server]
    ) -> tuple[list[Server], int]:
        """Return the servers that routes may lead to, and the number of new servers that are ready."""
        stage = self._desired.stage
        if stage is None:
            return [server for server in current if server in there or server.silent], len(current)
        api = self._desired.hosting == Deployment.Hosting.API
        ready = [
            server
            for server in current
            if server in there and (not api or self._wanted.keys() <= server.adapters)
        ]
        routed = ready[: stage.routed_copies]
        missing = 1 - len(routed) / len(self._urls)
        count = len(others) if stage.share is not None else math.ceil(len(others) * missing)
        older = [server for server in others if server in there or server.silent]
        return routed + ([] if stage.rolling_back and routed else older[:count]), len(ready)

    def _route_endpoint(self, server: Server) -> Endpoint:
        stage = self._desired.stage
        share = stage.share if stage is not None and server.url in self._urls else None
        rank, engine = self._desired.options.get("max_lora_rank"), server.engine
        return Endpoint(
            "openai_http",
            server.url,
            self._loads,
            silent=server.silent,
            share=share,
            engine=None if engine is None else replace(engine, max_rank=rank),
            credentials=self._credentials,
        )

    @property
    def _loads(self) -> bool:
        return self._desired.hosting != Deployment.Hosting.FUSED

    def _surplus(self, loaded: frozenset[str]) -> frozenset[str]:
        """Return the adapters to unload, which have no route: neither placed nor loaded for requests."""
        if self._desired.hosting == Deployment.Hosting.FUSED:
            return frozenset()
        return loaded - self._wanted.keys() - self._routed - self._desired.keep

    def _server(self, url: str) -> Server:
        self._heartbeat()
        try:
            answer = self._http.get(f"{url}/v1/models", timeout=_LIST_TIMEOUT)
            listed = answer.json().get("data", []) if answer.is_success else None
        except (httpx.HTTPError, ValueError, AttributeError) as error:
            # A read timeout means a busy server, not a stopped one.
            return Server(url, None, f"does not respond: {error}", isinstance(error, httpx.ReadTimeout))
        if answer.status_code in (401, 403):
            text = "rejects the token: set the target's token, or GRAFTWORK_OPENAI_HTTP_KEY, to the server's"
            return Server(url, None, text)
        if listed is None:
            return Server(url, None, f"returns status {answer.status_code} for GET /v1/models")
        names = frozenset(str(item.get("id")) for item in listed if isinstance(item, dict))
        if self._desired.served_name in names:
            owners = {item.get("owned_by") for item in listed if isinstance(item, dict)}
            return Server(url, names, engine=self._engine(url, owners))
        called = ", ".join(sorted(name for name in names if not _is_adapter(name))) or "nothing"
        return Server(
            url, names, f"serves {called}, not {self._desired.served_name}: start it with that name"
        )

    def _engine(self, url: str, owners: Collection[object]) -> RunningEngine | None:
        """Return the engine of a server whose models have these owners; None if it does not tell."""
        if "graftwork" in owners:
            return RunningEngine("worker")
        version = self._version(url) if "vllm" in owners else ""
        return RunningEngine("vllm", version) if version else None

    def _version(self, url: str) -> str:
        """Return the version of vLLM; "" if the server tells none."""
        try:
            value = self._http.get(f"{url}/version", timeout=_LIST_TIMEOUT).json()
        except (httpx.HTTPError, ValueError):
            return ""
        version = value.get("version") if isinstance(value, dict) else None
        return version if isinstance(version, str) and version_of(version) and len(version) <= 60 else ""

    def _adapter(self, name: str, there: list[Server]) -> PlacedAdapter:
        if name in self._refused:
            return PlacedAdapter(name, State.FAILED, self._refused[name])
        holding = [server for server in there if name in server.adapters]
        if there and len(holding) == len(there):
            return PlacedAdapter(name, State.READY)
        return PlacedAdapter(name, State.STARTING if holding else State.ABSENT)

    def _load(self, server: Server, ref: AdapterRef) -> Step:
        parts = urlsplit(ref.uri)
        path = unquote(parts.path).rstrip("/") if parts.scheme == "file" else ref.uri
        body = {"lora_name": ref.name, "lora_path": path}
        answer = self._post(f"{server.url}/v1/load_lora_adapter", body)
        failed = ""
        if not answer.is_success and not (answer.status_code == 400 and "already" in answer.text):
            failed = self._refused[ref.name] = _refusal(server, answer)
        return Step("load_lora_adapter", ref.name, f"missing on {server.url}", failed)

    def _unload(self, server: Server, name: str, cause: str) -> Step:
        answer = self._post(f"{server.url}/v1/unload_lora_adapter", {"lora_name": name})
        gone = answer.is_success or answer.status_code == 404
        return Step(
            "unload_lora_adapter", name, f"{cause} ({server.url})", "" if gone else _refusal(server, answer)
        )

    def _post(self, url: str, body: Mapping[str, Any]) -> httpx.Response:
        try:
            answer = self._http.post(url, json=body)
        except httpx.HTTPError as error:
            raise ProvisioningError(
                f"{url} does not respond: {error}", transient=True, code="away"
            ) from error
        if answer.status_code in (429, 503):
            text = answer.headers.get("retry-after", "")
            wait = float(text) if text.isdecimal() and len(text) < 5 else 0.0
            raise ThrottledError(f"{url} throttles requests", wait=wait, code=str(answer.status_code))
        return answer


def _refusal(server: Server, answer: httpx.Response) -> str:
    # If the route exists, 404 means missing adapter files and carries an error object.
    if answer.status_code == 404 and "error" not in answer.text:
        return (
            f"{server.url} has no routes for adapters: start vLLM with --enable-lora and"
            " VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    return (
        f"{server.url} refuses ({answer.status_code}: {answer.text[:300]}): it needs the adapter's "
        f"files at the same"
        " place, and a --max-lora-rank that is large enough"
    )


def _is_adapter(name: str) -> bool:
    try:
        EngineName.parse(name)
    except ContractError:
        return False
    return True
