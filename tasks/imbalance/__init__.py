"""A suite of small tables: every system at every epsilon and seed, resumable, and the page of what came out."""
