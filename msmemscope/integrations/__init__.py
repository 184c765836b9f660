"""Hook maps of frameworks, as data."""
