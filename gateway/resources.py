"""The connections, the usage log and the background tasks of one gateway process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from contracts.tracing import Tracing
from gateway.admission import Admission, Broker, line
from gateway.backends.base import Backend
from gateway.backends.openai_http import OpenAIHttpBackend
from gateway.backends.sagemaker import SageMakerBackend
from gateway.backends.upstream import Upstream, backend_tls
from gateway.backends.worker import WorkerBackend
from gateway.completions import PATHS, Completions
from gateway.dispatch import Dispatcher
from gateway.http.aws.credentials import BotocoreCredentials
from gateway.idempotency import AnswerStore, Idempotency
from gateway.lifecycle.drain import Drain
from gateway.lifecycle.health import Health
from gateway.lifecycle.presence import Presence
from gateway.lifecycle.state import GatewayState
from gateway.multi_adapter import MultiAdapter
from gateway.observability import Observer
from gateway.observability.metrics import Metrics
from gateway.request_preparer import RequestPreparer
from gateway.routing import Authorizer
from gateway.routing.copy_headers import CopyHeaders
from gateway.routing.fleet import Fleet
from gateway.routing.not_served import read_engines
from gateway.routing.poller import LoadPoller
from gateway.routing.quarantine import QuarantineFeed
from gateway.routing.route_feed import RouteFeed
from gateway.routing.waiting_room import WaitingRoom
from gateway.settings import Settings
from gateway.usage.abandoned_logs import ship_abandoned_logs
from gateway.usage.metering import Meter
from gateway.usage.prompt_log import PromptLog
from gateway.usage.shipper import Shipper
from gateway.usage.wal import Wal
from gateway.usage.wal_slots import claim

logger = logging.getLogger(__name__)


class Resources:
    """The parts of a running gateway. They belong to the event loop that they are made on.

    Attributes:
        feed: the route table.
        completions: serves requests for tokens; `idempotency` serves those with an Idempotency-Key.
        state: what metrics and heartbeats report.
    """

    def __init__(self, settings: Settings, authorizer: Authorizer) -> None:
        """Raises OSError or RuntimeError if the usage log or a certificate cannot be opened."""
        self._settings = settings
        self._trusted = backend_tls(settings.backend_ca)
        self._upstream = Upstream(tls=self._trusted)
        self._connect()
        self._wal = Wal(claim(settings.wal_dir))
        if self._wal.recovered:
            logger.warning("usage log: %d interrupted streams recovered", self._wal.recovered)
        self._shipper = Shipper(self._wal, self._redis)
        self._prompts = PromptLog(self._redis)
        self.feed = RouteFeed(self._redis, stale_seconds=settings.stale_seconds)
        self.drain = Drain(settings.drain_seconds)
        self.health = Health(self._wal, self.feed, self.drain)
        self._room = WaitingRoom(self.feed, self._redis, most=settings.held)
        self._observe()
        self._meter = Meter(self._wal, settings.gateway_id, self.observer)
        self._fleet = Fleet()
        self._quarantine = QuarantineFeed(self._redis, self._fleet.deaths)
        self._headers = CopyHeaders(settings.fleet_token, settings.openai_http_key)
        self._broker = Broker(self._limits_redis, self._wal.slot.id)
        self._answer(authorizer)
        self._presence = Presence(self._redis, settings.gateway_id, self.state, self.health)

    def _connect(self) -> None:
        url = self._settings.redis_url
        self._redis = Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2)
        self._limits_redis = line(url)
        self._answers_redis = Redis.from_url(
            url, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
        )

    def _observe(self) -> None:
        settings = self._settings
        self._tracing = Tracing.start("graftwork-gateway", os.environ)
        self.observer = Observer(
            Metrics(self._wal.folder, adapters=settings.metrics_adapters),
            PATHS,
            tracing=self._tracing,
            access_log=settings.access_log,
        )

    def _answer(self, authorizer: Authorizer) -> None:
        settings = self._settings
        backends: dict[str, Backend] = {
            "worker": WorkerBackend(self._upstream, settings.fleet_token),
            "openai_http": OpenAIHttpBackend(self._upstream, self._headers, self._fleet, self._answers_redis),
            "sagemaker": SageMakerBackend(self._upstream, BotocoreCredentials(), self._room),
        }
        dispatcher = Dispatcher(self._meter, backends, self._fleet)
        admission = Admission(
            self._broker, queue_seconds=settings.queue_seconds, queue_length=settings.queue_length
        )
        preparer = RequestPreparer(self.feed, authorizer, admission, self._room, self._quarantine)
        multi_adapter = MultiAdapter(preparer, dispatcher, self._meter, self.observer, self.drain)
        self.completions = Completions(
            preparer,
            dispatcher,
            multi_adapter,
            self._meter,
            self.observer,
            self.drain,
            self._prompts,
            settings.image_hosts,
        )
        answers = AnswerStore(self._answers_redis, settings.fleet_token)
        self.idempotency = Idempotency(answers, self.completions.serve)
        self.state = GatewayState(
            self._wal,
            self._shipper,
            self.feed,
            self._fleet,
            self._broker,
            dispatcher.counters,
            self._room,
            self._quarantine,
        )

    def start(self) -> None:
        """Start the background tasks."""
        read_engines()
        settings, start = self._settings, self.health.start
        poller = LoadPoller(self.feed, self._fleet, self._headers, tls=self._trusted)
        abandoned = ship_abandoned_logs(settings.wal_dir, self._redis, self._presence.forget)
        start("route feed", self.feed.run())
        start("load poller", poller.run())
        start("limits", self._broker.run())
        start("waiting room", self._room.run())
        start("quarantines", self._quarantine.run())
        start("meter", self._meter.run())
        start("usage shipper", self._shipper.run())
        start("prompt log", self._prompts.run())
        start("shipper of abandoned logs", abandoned)
        start("metrics", self.observer.run(self.state))
        start("presence", self._presence.run())

    async def close(self) -> None:
        """Stop the tasks, ship what is left of prompts and usage events, and close all connections."""
        pending = set(self.health.tasks)
        while pending:
            # A timeout inside the Redis client can replace a cancellation, and these loops wait timeouts out.
            # So the cancellation is repeated until it takes effect.
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.5)
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            await asyncio.wait_for(self._prompts.ship(), 1)
        try:
            await asyncio.wait_for(self._shipper.drain(), 3)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("usage log: events remain unshipped until the next start: %s", error)
        # In parallel: with Redis away each close waits for one of the few seconds that a stop has.
        await asyncio.gather(self._broker.close(), self._presence.withdraw())
        await self._limits_redis.aclose()
        await self._answers_redis.aclose()
        self._wal.close()
        await self._upstream.close()
        await self._redis.aclose()
        self.observer.metrics.end()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
