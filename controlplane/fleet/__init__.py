"""The fleet as it is now: what copies say of themselves, and what metering says of their traffic."""
