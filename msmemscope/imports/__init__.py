"""From files of other tools to a run: the events that they tell of, in the tables that every analysis reads.

In: PyTorch's memory snapshots, upstream's csv and db. Out: a run directory as the aggregator leaves one. One reader per
kind of file turns it into columns of events (`Imported`); `writer.py` stores them, and nothing behind it knows where
they came from. Nothing that is read is trusted: docs/import.md.
"""
