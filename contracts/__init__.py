"""Contracts shared by the planes: messages, names, and rules for adapters and recipes.

Planes import this package and nothing else of each other. It imports the standard library, google-re2 and,
where traces are on, OpenTelemetry.
"""
