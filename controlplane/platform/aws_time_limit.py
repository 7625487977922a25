"""A task's time limit holds inside boto3's calls, too."""

from __future__ import annotations

from typing import Any

from celery.exceptions import SoftTimeLimitExceeded


def heed_time_limit(client: Any) -> Any:
    """The same boto3 client, which lets SoftTimeLimitExceeded pass.

    Celery raises it wherever the task happens to be. Within a request botocore takes it for a broken
    connection and sends the request again, until the process is killed.
    """
    # Before botocore's own, which are registered for the service.
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register_first(f"needs-retry.{service}", _pass_time_limit)
    return client


def _pass_time_limit(*, caught_exception: BaseException | None = None, **_: Any) -> None:
    error = caught_exception
    while error is not None:
        if isinstance(error, SoftTimeLimitExceeded):
            raise error
        error = error.__cause__ or error.__context__
