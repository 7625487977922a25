"""Backends, which serve tokens: one file per kind of copy, named as `CopyRoute.kind`."""
