"""Runs a suite of small tables: every system at every epsilon and seed, resumable, with a page of results."""
