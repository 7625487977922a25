"""What `/health` tells: whether requests are taken, and how steps are computed."""

from __future__ import annotations

from worker_engine.kernel_choice import TRITON
from worker_engine.service import Service


def report(service: Service) -> dict[str, object]:
    """`status`, and while that is `ok` how the engine computes; why kernels are off is in the log alone,
    since anyone may ask.
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
