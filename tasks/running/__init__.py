"""How a stage runs: its key, its lock, its progress, its failures, its code."""
