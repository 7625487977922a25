"""Attributes deaths of engines to adapters, and holds back an adapter that ends several (ADR 89)."""

from gateway.routing.quarantine.observed import EngineDeaths as EngineDeaths
from gateway.routing.quarantine.quarantine import QuarantineFeed as QuarantineFeed
