"""Who calls, what a model name means, and which copy answers."""

from gateway.routing.callers import Caller, Door, authenticate
from gateway.routing.names import Resolution, callable_models, dropped_parameters, fallbacks, resolve

__all__ = [
    "Caller",
    "Door",
    "Resolution",
    "authenticate",
    "callable_models",
    "dropped_parameters",
    "fallbacks",
    "resolve",
]
