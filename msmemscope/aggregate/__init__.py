"""From the agent's batches to the tables of a run: wire, shard, journal, store, coordinator."""
