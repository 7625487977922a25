"""Phases of scale-ups: recorded, drawn, and predicted for the next one."""
