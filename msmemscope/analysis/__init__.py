"""Pure functions from tables to findings, one analysis per file."""
