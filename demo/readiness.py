"""Readiness probes over the loopback interface: quick, and False until the process serves."""

from __future__ import annotations

from pathlib import Path

import httpx
import redis


def pings(redis_url: str) -> bool:
    """Return True if a Redis or Valkey server answers and has loaded its data."""
    try:
        with redis.Redis.from_url(redis_url, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.exceptions.RedisError:
        return False


def answers(url: str) -> bool:
    """Return True if GET `url` returns a 2xx."""
    try:
        return httpx.get(url, timeout=2, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def logged(path: Path, text: bytes) -> bool:
    """Return True if the log at `path` contains `text`."""
    return path.exists() and text in path.read_bytes()


def serves(gateway: str, *, api_key: str, names: set[str]) -> bool:
    """Return True if the gateway lists all of `names` to this key, so the route table has arrived."""
    headers = {"Authorization": f"Bearer {api_key}"}
    try:
        response = httpx.get(f"{gateway}/v1/models", headers=headers, timeout=2, trust_env=False)
        return response.is_success and names <= {model["id"] for model in response.json()["data"]}
    except (httpx.HTTPError, ValueError):
        return False
