"""A script by mistake: it ends the program that imports it."""

raise SystemExit(6)
