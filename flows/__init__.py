"""Composes tasks into flows, and has the `autocoder` command (`cli`)."""
