"""The command line: one command per file. Nothing imports this package."""
