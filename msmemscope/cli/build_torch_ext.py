"""`msmemscope build-torch-ext`: builds the observer of torch's operators now, for this Python's torch."""

from __future__ import annotations

import importlib
import os

import click

from msmemscope.cli.main import HELP
from msmemscope.cli.messages import say
from msmemscope.collect import torch_ext
from msmemscope.errors import MemscopeError


@click.command(context_settings=HELP)
def command() -> int:
    """Build the observer that records torch's operators, for the torch of this Python.

    A program that records operators builds it by itself when it is not there, beside the program, and has operators
    once it is done. This does it beforehand: in an image without a compiler at run time, or before a short program. It
    goes into the user's cache (XDG_CACHE_HOME, else ~/.cache), which must be the same when the program runs.
    """
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # torch's headers are needed, no accelerator
    try:
        module = importlib.import_module("torch")
    except ImportError as error:
        raise MemscopeError(f"torch cannot be imported ({error}): run this with the Python of the program") from None
    torch = torch_ext.torch_of(module)
    if (there := torch_ext.built(torch)) is not None:
        say("info", f"the observer for torch {module.__version__} is there: {there}")
        return 0
    say("info", f"building the observer for torch {module.__version__} (some 20 seconds)")
    say("info", f"built: {torch_ext.build(torch)}")
    return 0
