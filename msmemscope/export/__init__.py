"""Files in the shapes of other tools, made from a run: upstream's per-device memscope_dump_<time>.csv and .db.

Called by report/outputs.py, which says what was asked for. Stands on analysis and tables, and on the native rows of
_kernel (native/kernel/upstream_rows.h).
"""
