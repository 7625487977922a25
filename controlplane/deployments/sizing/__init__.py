"""Compute how much of a machine a copy of a base model needs, with reasons."""
