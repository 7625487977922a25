"""The worker's figures in Prometheus' text form."""

from __future__ import annotations

from worker_engine.service import Service


def render(service: Service) -> str:
    """All figures, read without a lock: each is one integer that the engine's thread replaces."""
    engine, scheduler = service.engine, service.engine.scheduler
    running = len(scheduler.running)
    figures = [
        ("generated_tokens_total", "counter", "Tokens sampled.", engine.num_generated_tokens),
        ("prompt_tokens_total", "counter", "Prompt tokens computed.", engine.num_prompt_tokens),
        ("preemptions_total", "counter", "Sequences set back for want of pages.", scheduler.num_preemptions),
        ("requests_running", "gauge", "Sequences in the batch.", running),
        ("requests_waiting", "gauge", "Requests accepted, not yet running.", service.num_pending - running),
        ("kv_pages_used", "gauge", "KV pages held by sequences.", engine.pool.num_used),
        ("kv_pages_total", "gauge", "KV pages there are.", engine.pool.capacity),
        ("adapters_resident", "gauge", "Adapters in memory.", service.adapters.num_resident),
        ("adapter_bytes", "gauge", "Memory of resident adapters.", service.adapters.nbytes),
    ]
    lines = [
        f"# HELP graftwork_worker_{name} {text}\n# TYPE graftwork_worker_{name} {kind}\n"
        f"graftwork_worker_{name} {max(value, 0)}\n"
        for name, kind, text, value in figures
    ]
    return "".join(lines)
