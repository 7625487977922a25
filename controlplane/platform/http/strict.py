"""Input of REST calls: validated by serializers, of which strict ones refuse unknown fields by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """An input serializer, also for nested use, that refuses unknown fields, such as misspelt ones."""

    def to_internal_value(self, data: Any) -> Any:
        """Validate the data. Raises ValidationError naming the first unknown field."""
        if isinstance(data, Mapping) and (
            unknown := sorted(str(name) for name in set(data) - set(self.fields))
        ):
            name = unknown[0][:64]
            raise serializers.ValidationError({name: [f"{name!r} is none of {', '.join(self.fields)}"]})
        return super().to_internal_value(data)


def validated(kind: type[serializers.BaseSerializer[Any]], data: Any) -> dict[str, Any]:
    """Return the values in `data`, a body or a query, by field of the serializer. Raises ValidationError."""
    serializer = kind(data=data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)
