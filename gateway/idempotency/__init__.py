"""Idempotency-Key: a repeated request gets the first one's answer, and is billed once."""

from gateway.idempotency.guard import HEADER, Idempotency
from gateway.idempotency.store import AnswerStore

__all__ = ["HEADER", "AnswerStore", "Idempotency"]
