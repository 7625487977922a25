"""Routing: authenticates callers, resolves model names, and chooses copies."""

from gateway.routing.callers import Authorizer, Caller, authenticate
from gateway.routing.names import Resolution, callable_models, dropped_parameters, fallbacks, resolve

__all__ = [
    "Authorizer",
    "Caller",
    "Resolution",
    "authenticate",
    "callable_models",
    "dropped_parameters",
    "fallbacks",
    "resolve",
]
