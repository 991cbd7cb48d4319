"""What a run writes: its folder, results.json, metrics.csv, tables."""
