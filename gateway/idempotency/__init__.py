"""Idempotency-Key: a repeated request gets the first one's answer, and is billed once."""

from gateway.idempotency.guard import Idempotency, idempotency_key
from gateway.idempotency.store import AnswerStore

__all__ = ["AnswerStore", "Idempotency", "idempotency_key"]
