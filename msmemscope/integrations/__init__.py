"""Hook maps of frameworks, as data: which of their functions say whose memory is. Applied by collect/rank/hijack.py.

Imported inside a rank: the standard library alone.
"""
