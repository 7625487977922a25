"""Redis keys and streams that the control plane and the gateways share."""

from __future__ import annotations

from typing import Final

ROUTES_SNAPSHOT: Final = "graftwork:routes:table"
"""Redis string: `RouteTable.snapshot()`."""
ROUTES_DELTAS: Final = "graftwork:routes:deltas"
"""Redis stream, one entry a delta, fields `version` and `change` (JSON of a RouteChange)."""
ROUTES_VERSION: Final = "graftwork:routes:version"
"""Redis string: version of the newest delta or snapshot published."""
ROUTES_SEEN: Final = "graftwork:routes:seen"
"""Redis sorted set, member `version`: the highest version of any gateway that was offered a lower one."""
USAGE_STREAM: Final = "graftwork:usage"
"""Redis stream, one entry a usage event, field `event` (JSON of a UsageEvent)."""
USAGE_GROUP: Final = "metering"
"""Consumer group of the control plane on `USAGE_STREAM`."""
GATEWAYS: Final = "graftwork:gateways"
"""Redis hash: by usage log slot, the status of its gateway process (JSON of a GatewayStatus)."""
