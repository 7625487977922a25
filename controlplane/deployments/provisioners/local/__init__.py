"""Worker processes on the control plane's own host."""
