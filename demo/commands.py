"""Command lines of the product's processes, as the demo runs them."""

from __future__ import annotations

import sys

from demo.config import DemoConfig
from demo.valkey import server_command


def commands(config: DemoConfig) -> dict[str, list[str]]:
    """Return the command line by process name; `valkey` only if no other Redis server is configured."""
    state, ports = config.state, config.ports
    celery = ("-m", "celery", "-A", "controlplane.celery")
    found = {
        "seed": _python(
            "-m",
            "demo.seed",
            "--credentials",
            str(state / "credentials.json"),
            "--base-model",
            config.base_model,
            "--source",
            str(config.model),
            "--worker-url",
            config.url("worker"),
            *(["--sample"] if config.sample else []),
        ),
        "worker": _python(
            "-m",
            "worker_engine",
            "--model",
            str(config.model),
            "--served-model-name",
            config.base_model,
            "--host",
            "127.0.0.1",
            "--port",
            str(ports["worker"]),
            "--device",
            "cpu",
            "--adapter-cache-dir",
            str(state / "adapter-cache"),
        ),
        "gateway": _python("-m", "gateway"),
        "web": _python("-m", "controlplane.web_server", "--port", str(ports["web"])),
        "publish_routes": _python("manage.py", "publish_routes"),
        "ingest_usage": _python("manage.py", "ingest_usage"),
        "celery": _python(*celery, *_worker("celery", "graftwork")),
        "celery_long": _python(
            *celery,
            *_worker(
                "long",
                "graftwork.webhooks,graftwork.mail,graftwork.long,graftwork.deployments,graftwork.optimize.cpu",
            ),
        ),
        "beat": _python(*celery, "beat", "--schedule", str(state / "celerybeat-schedule"), "--pidfile", ""),
    }
    if config.redis is None:
        found["valkey"] = server_command(port=ports["valkey"], folder=state / "valkey")
    return found


def sample_command(config: DemoConfig, action: str) -> list[str]:
    """Return the command that adds (`add`) or removes (`remove`) the sample data."""
    options = ("--base-model", config.base_model, "--state", str(config.sample_state))
    return _python("-m", "demo.sample", action, *options)


def _worker(node: str, queues: str) -> tuple[str, ...]:
    # One process per queue, so that a slow webhook endpoint does not delay validations, or the reverse.
    concurrency = str(len(queues.split(",")))
    return ("worker", "-n", f"{node}@%h", "-Q", queues, "--concurrency", concurrency, "--loglevel", "INFO")


def _python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
