"""`python -m msmemscope` is the command `msmemscope`."""

from msmemscope.isolated import isolate_command

if __name__ == "__main__":
    isolate_command(by_module=True)
    from msmemscope.cli.main import main_and_leave  # only now: what it imports must not be a module of the user's

    main_and_leave()
