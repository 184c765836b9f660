"""What `msmemscope --compare --input-path=a,b` does: upstream's comparison of two files, launch by launch."""

from __future__ import annotations

import importlib
import os
import stat
from pathlib import Path

from msmemscope.cli.messages import say
from msmemscope.cli.output_place import prepare_output
from msmemscope.errors import InputError, MemscopeError
from msmemscope.options.settings import Config

_MAX_INPUT_BYTES = 1 << 33


def compare_inputs(config: Config) -> int:
    """Writes the files and says where. Returns the exit status, 0."""
    paths = [_checked(path) for path in config.input_paths]
    for warning in prepare_output(config.output_path):
        say("warning", warning)
    found = importlib.import_module("msmemscope.imports.memory_compare").compare_files(*paths, config.level)
    for note in found.notes:
        say("warning", note)
    write = importlib.import_module("msmemscope.report.memory_compare").write_memory_compare
    try:
        compared, net = write(Path(config.output_path), found.rows)
    except OSError as error:
        raise MemscopeError(f"cannot write below {config.output_path}: {error.strerror or error}") from None
    only_base = sum(1 for row in found.rows if row.compare is None)
    only_compare = sum(1 for row in found.rows if row.base is None)
    say(
        "info",
        f"{len(found.rows) - only_base - only_compare:,} launches are in both, {only_base:,} in {paths[0]} alone, "
        f"{only_compare:,} in {paths[1]} alone: {compared}; what was allocated less what was freed by each: {net}",
    )
    return 0


def _checked(text: str) -> Path:
    try:
        facts = os.lstat(text)
    except OSError as error:
        raise InputError(f"--input-path: cannot read {text} ({error.strerror}): check its name") from None
    is_directory = stat.S_ISDIR(facts.st_mode)
    if not (stat.S_ISREG(facts.st_mode) or is_directory):
        raise InputError(f"--input-path: {text} is neither a regular file nor a directory: name a memscope_dump file")
    if not is_directory and facts.st_size > _MAX_INPUT_BYTES:
        raise InputError(f"--input-path: {text} is larger than 8 GiB: split the run with --steps")
    if not os.access(text, os.R_OK | (os.X_OK if is_directory else 0)):
        raise InputError(f"--input-path: cannot read {text} (Permission denied): change its mode")
    return Path(text)
