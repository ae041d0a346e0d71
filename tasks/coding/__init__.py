"""Using a bundle: codes for tables, groups, quality, drift."""
