"""The body of `/health`: whether requests are accepted, and how steps are computed."""

from __future__ import annotations

from worker_engine.kernel_choice import TRITON
from worker_engine.service import Service


def report(service: Service) -> dict[str, object]:
    """Return `status` and, while it is `ok`, how the engine computes.

    The endpoint is public, so the reason why kernels are off is only logged.
    """
    status = service.status
    if status != "ok":
        return {"status": status}
    engine = service.engine
    graphs = "off" if engine.graphs is None else "failed" if engine.graphs.problem else "on"
    return {
        "status": status,
        "device": engine.device.type,
        "kernels": {op: "triton" if state == TRITON else "pytorch" for op, state in engine.kernels.items()},
        "decode_graphs": graphs,
        "overlap": engine.overlaps,
        "speculation": service.config.speculation,
        "startup": service.startup.report(),
    }
