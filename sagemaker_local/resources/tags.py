"""Tags of every resource, by its ARN."""

from __future__ import annotations

from typing import Any, Final

from sagemaker_local.aws.json_service import Handler
from sagemaker_local.aws_errors import ValidationException
from sagemaker_local.resources.listing import window
from sagemaker_local.resources.records import Record
from sagemaker_local.resources.store import Region

MAX_TAGS: Final = 50


class Tags:
    """AddTags, ListTags, DeleteTags."""

    def __init__(self, region: Region) -> None:
        self._region = region

    @property
    def operations(self) -> dict[str, Handler]:
        return {"AddTags": self.add, "ListTags": self.list_all, "DeleteTags": self.delete}

    async def add(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request["ResourceArn"])
        tags = record.tags | {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        if len(tags) > MAX_TAGS:
            raise ValidationException(f"A resource has at most {MAX_TAGS} tags.")
        record.tags = tags
        self._region.changed()
        return {"Tags": _tag_list(tags)}

    async def list_all(self, request: dict[str, Any]) -> dict[str, Any]:
        tags, more = window(_tag_list(self._get(request["ResourceArn"]).tags), request, MAX_TAGS)
        return {"Tags": tags, **more}

    async def delete(self, request: dict[str, Any]) -> dict[str, Any]:
        record = self._get(request["ResourceArn"])
        for key in request["TagKeys"]:
            record.tags.pop(key, None)
        self._region.changed()
        return {}

    def _get(self, arn: str) -> Record:
        """Return the resource; its ARN may contain the name in its original case.

        Raises:
            ValidationException: no resource has the ARN.
        """
        for record in self._region.store.all():
            if record.arn == arn.lower():
                return record
        raise ValidationException(f'Could not find resource "{arn}".')


def _tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]
