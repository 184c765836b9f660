"""A run on disk: its schema, its parts, and the reader. Written by aggregate, read by folds, analysis and export."""
