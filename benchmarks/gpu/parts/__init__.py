"""The parts of the report: each module has `tasks(quick, device)` and `goals(rows)`."""
