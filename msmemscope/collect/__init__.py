"""Everything that runs inside a rank, and the node's agent. Inside a rank: stdlib and _native only."""
