"""What runs inside a rank: attaching, steps, the session of library mode. Stdlib and _native only."""
