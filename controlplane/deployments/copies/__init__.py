"""Copies of base models in the route table."""
