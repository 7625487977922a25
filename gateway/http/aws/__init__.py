"""What the gateway needs of AWS: signatures, event-stream frames, credentials. No client library."""
