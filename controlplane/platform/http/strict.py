"""Bodies of REST calls: a field that is not known is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """What a caller sends, nested too: a misspelt field must not leave out the one that was meant."""

    def to_internal_value(self, data: Any) -> Any:
        """Raises ValidationError at the first field that is none of this serializer's."""
        if isinstance(data, Mapping) and (
            unknown := sorted(str(name) for name in set(data) - set(self.fields))
        ):
            name = unknown[0][:64]
            raise serializers.ValidationError({name: [f"{name!r} is none of {', '.join(self.fields)}"]})
        return super().to_internal_value(data)
