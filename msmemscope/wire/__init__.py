"""What agents and shards say to each other: msgpack maps over ZeroMQ."""
