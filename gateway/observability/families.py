"""The gateway's metrics: names, kinds and buckets. docs/observability.md explains each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "graftwork_gateway_"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SHORT_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. Counters and histograms are summed over processes; gauges carry `process`.

    Attributes:
        bounds: a histogram's upper bounds.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    bounds: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Cells of one series: a histogram has one per bucket, one above all buckets, and the sum."""
        return len(self.bounds) + 2 if self.bounds else 1


REQUESTS: Final = Family("requests_total", "counter", "Requests by endpoint, base model, status and outcome.")
DURATION: Final = Family("request_seconds", "histogram", "From arrival to the last byte.", SECONDS)
TTFT: Final = Family("ttft_seconds", "histogram", "From arrival to the first token.", SECONDS)
ITL: Final = Family("itl_seconds", "histogram", "From one token of a stream to its next.", TOKEN_SECONDS)
OVERHEAD: Final = Family(
    "overhead_seconds", "histogram", "Not spent waiting for backend, client or queue.", SHORT_SECONDS
)
QUEUE: Final = Family("queue_seconds", "histogram", "Waiting for admission.", SHORT_SECONDS)
TOKENS: Final = Family("tokens_total", "counter", "Tokens as recorded for the bill; cached are among prompt.")
ERRORS: Final = Family("errors_total", "counter", "Requests that failed, by the error's code.")
REFUSED: Final = Family("limited_total", "counter", "Requests refused by a limit, by its kind.")
ATTEMPTS: Final = Family("attempts_total", "counter", "Requests sent to copies.")
RETRIES: Final = Family("retries_total", "counter", "Attempts after a request's first.")
RETRIES_DENIED: Final = Family("retries_denied_total", "counter", "Retries that the budget did not allow.")
FALLBACKS: Final = Family("fallbacks_total", "counter", "Requests that another model answered.")
NO_COPY: Final = Family("no_copy_total", "counter", "Requests for a model none of whose copies took one.")
OPENINGS: Final = Family("breaker_openings_total", "counter", "Times that a copy's circuit breaker opened.")
ENGINE_DEATHS: Final = Family("engine_deaths_total", "counter", "Deaths of copies' engines with requests.")
SHIPPED: Final = Family("usage_shipped_total", "counter", "Usage events moved to Redis.")
SERIES_REFUSED: Final = Family("metrics_refused_total", "counter", "Series for which the file had no room.")
IN_FLIGHT: Final = Family("requests_in_flight", "gauge", "Requests under way.")
HELD: Final = Family("requests_held", "gauge", "Requests that wait for the first copy of their model.")
QUARANTINED: Final = Family("adapters_quarantined", "gauge", "Adapters held back after engines' deaths.")
COPY_IN_FLIGHT: Final = Family("copy_requests_in_flight", "gauge", "Requests under way at a copy.")
BREAKER: Final = Family("breaker_state", "gauge", "0 closed, 1 half open, 2 open.")
BACKLOG: Final = Family("usage_log_backlog_bytes", "gauge", "Usage on disk that is not in Redis yet.")
WRITABLE: Final = Family("usage_log_writable", "gauge", "0 while no new work is taken for it.")
ROUTES_VERSION: Final = Family("routes_version", "gauge", "Version of the route table; 0 before the first.")
ROUTES_AGE: Final = Family("routes_age_seconds", "gauge", "Since Redis last confirmed the route table.")
REDIS_AWAY: Final = Family("redis_away", "gauge", "1 while the limits' Redis does not answer.")
LAG: Final = Family(
    "event_loop_lag_seconds", "gauge", "How late the event loop last ran this process's beat."
)
STARTED: Final = Family("start_time_seconds", "gauge", "When the process started, in Unix time.")
TRACKED: Final = Family("adapters_named", "gauge", "Adapters with series of their own.")

FAMILIES: Final = (
    REQUESTS,
    DURATION,
    TTFT,
    ITL,
    OVERHEAD,
    QUEUE,
    TOKENS,
    ERRORS,
    REFUSED,
    ATTEMPTS,
    RETRIES,
    RETRIES_DENIED,
    FALLBACKS,
    NO_COPY,
    OPENINGS,
    ENGINE_DEATHS,
    SHIPPED,
    SERIES_REFUSED,
    IN_FLIGHT,
    HELD,
    QUARANTINED,
    COPY_IN_FLIGHT,
    BREAKER,
    BACKLOG,
    WRITABLE,
    ROUTES_VERSION,
    ROUTES_AGE,
    REDIS_AWAY,
    LAG,
    STARTED,
    TRACKED,
)

ADAPTERS: Final = "adapters"
"""Marks an adapter's metrics in the index; they are adjacent, so one rename moves all."""
ADAPTER_CELLS: Final = (
    ("adapter_requests_total", 'status="ok"'),
    ("adapter_requests_total", 'status="failed"'),
    ("adapter_tokens_total", 'kind="prompt"'),
    ("adapter_tokens_total", 'kind="cached"'),
    ("adapter_tokens_total", 'kind="completion"'),
    ("adapter_ttft_seconds_sum", ""),
    ("adapter_ttft_seconds_count", ""),
)
ADAPTER_TEXTS: Final = (
    ("adapter_requests_total", "counter", "Attempts with an adapter; the less used are summed as _others."),
    ("adapter_tokens_total", "counter", "Their tokens."),
    ("adapter_ttft_seconds", "summary", "Their time to the first token."),
)
OTHERS: Final = "_others"
"""Label of all other adapters; engine names begin with `t_`."""

SCHEMA: Final = repr((FAMILIES, ADAPTER_CELLS))
