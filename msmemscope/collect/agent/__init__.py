"""The node's process: drains rings, feeds the aggregator, samples memory, sees processes end."""
