"""Asks what the options of analyses come to, in a process of its own: a rank imports no analysis.

In: a Config with such options. Out: what analysis/asked.py makes of it. Takes about a second, where config() was given
any; nothing otherwise.
"""

from __future__ import annotations

import json
import subprocess

from msmemscope.errors import MemscopeError
from msmemscope.isolated import environment_of_service, isolated_command
from msmemscope.options.declared import Config, OptionError

_LONGEST_S = 60.0


def settled(config: Config) -> Config:
    """Raises OptionError for an unknown analysis or option or a wrong value, MemscopeError when nobody answers."""
    command = isolated_command("msmemscope.analysis.asked", json.dumps(config.as_dict()))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
            env=environment_of_service(),
        )
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise MemscopeError(f"the options of analyses cannot be checked: {error}") from None
    if "error" in answer:
        raise OptionError(answer["error"])
    return Config.from_dict(answer["config"])
