"""State machines over the events of one ring, in its order: what an analysis needs, kept while the job runs.

The shard gives every batch to the fold of its ring as it is stored; `analyze` gives the same folds the parts of a run.
Both get the same tables (ring_tables.py), however the events were cut into batches. Whoever wants to know something of
the job merges the tables of its rings (analysis/blocks.py): a fold's inside is nobody else's business.
"""
