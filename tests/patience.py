"""How long a test waits for what must come."""

LIMIT_S = 600.0
"""Far above what anything takes on a loaded machine: it only ends a hang."""

RETURNS_S = 60.0
"""What the command promises: it returns so soon behind the program's end, whatever has become of services and disk."""

ENDS_S = 180.0
"""Within this all that serves a run has ended, also where its keeper was killed."""
