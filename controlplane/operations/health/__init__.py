"""How every part of the installation is, since when, and what to do about it."""
