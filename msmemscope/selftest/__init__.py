"""Does what is installed here give the right answers? Scripted jobs whose findings are known to the byte.

script.py is the language, cases/ the jobs, play.py the way that their events take (ring, wire, journal, parts, folds,
analyses), case.py what is compared. Called by `msmemscope selftest` and by tests/faults; imports neither torch nor
pytest.
"""
