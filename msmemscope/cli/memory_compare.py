"""What `msmemscope --compare --input-path=a,b` does: upstream's comparison of two files, launch by launch."""

from __future__ import annotations

import errno
import importlib
import os
import stat
from contextlib import closing
from pathlib import Path

from msmemscope.cli.messages import say
from msmemscope.cli.output_place import prepare_output
from msmemscope.errors import InputError, MemscopeError
from msmemscope.options.settings import Config


def compare_inputs(config: Config) -> int:
    """Writes the files and says where. Returns the exit status, 0."""
    paths = [_checked(path) for path in config.input_paths]
    for warning in prepare_output(config.output_path):
        say("warning", warning)
    try:
        found = importlib.import_module("msmemscope.imports.memory_compare").compare_files(*paths, config.level)
    except OSError as error:
        what = f"{error.filename}: {error.strerror or error}" if error.filename else str(error.strerror or error)
        advice = ": set TMPDIR to a directory with room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise MemscopeError(f"{what}{advice}") from None
    with closing(found):
        for note in found.notes:
            say("warning", note)
        write = importlib.import_module("msmemscope.report.memory_compare").write_memory_compare
        try:
            compared, net = write(Path(config.output_path), found.each())
        except OSError as error:
            raise MemscopeError(f"cannot write below {config.output_path}: {error.strerror or error}") from None
        say(
            "info",
            f"{found.both:,} launches are in both, {found.only_base:,} in {paths[0]} alone, {found.only_compare:,} in "
            f"{paths[1]} alone: {compared}; what was allocated less what was freed by each: {net}",
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
    if not os.access(text, os.R_OK | (os.X_OK if is_directory else 0)):
        raise InputError(f"--input-path: cannot read {text} (Permission denied): change its mode")
    return Path(text)
