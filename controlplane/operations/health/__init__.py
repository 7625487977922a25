"""Health of every component of the installation: state, time of the last change and remedy."""
