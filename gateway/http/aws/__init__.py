"""AWS protocols for the gateway: signatures, event-stream frames, credentials. No client library."""
