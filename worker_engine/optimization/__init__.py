"""`python -m worker_engine.optimization`: a checkpoint made smaller or faster, and what that is worth,
measured.

`recipe`, `compatibility`, `model_facts`, `spec_fields` and `progress` are standard library only: the control
plane states recipes, refuses stacks and reads progress with them, and starts the rest as a subprocess.
"""
