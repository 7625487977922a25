"""Placement of adapters on a deployment's copies."""
