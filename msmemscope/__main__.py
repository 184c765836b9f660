"""`python -m msmemscope` is the command `msmemscope`."""

import sys

from msmemscope.isolated import isolate_command


def _main() -> int:
    isolate_command(by_module=True)
    from msmemscope.cli.main import main  # only now: what it imports must not be a module of the user's

    return main()


if __name__ == "__main__":
    sys.exit(_main())
