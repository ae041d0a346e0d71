"""Flows compose tasks; nothing else. `cli` is the `autocoder` command."""
