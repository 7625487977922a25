"""The tenants' web UI: server-rendered pages over the services and selectors of the other apps."""
