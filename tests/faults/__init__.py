"""Seeded faults: jobs whose findings are known before they run. README.md says how one is added."""
