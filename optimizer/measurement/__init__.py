"""`compare`: arms beside each other on one machine, each a real worker process, judged by paired
statistics."""
