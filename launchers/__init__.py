"""Adapters for the programs that start ranks; installed as msmemscope.launchers."""
