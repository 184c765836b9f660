"""The errors a user may see. The command line prints them as one line on stderr and exits with their status."""

from __future__ import annotations


class MemscopeError(Exception):
    """Something failed on our side. The text says what, where, and what to do next."""

    exit_status = 4


class UsageError(MemscopeError):
    """A wrong option or argument."""

    exit_status = 2


class InputError(MemscopeError):
    """A file or a run that cannot be used."""

    exit_status = 3


class RunError(InputError):
    """A directory that is not a run, or holds one of another schema."""
