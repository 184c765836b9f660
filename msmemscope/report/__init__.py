"""Console, exports and merged files made from tables and findings."""
