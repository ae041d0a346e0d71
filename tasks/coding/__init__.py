"""Uses a bundle: codes tables, reports groups, quality and drift."""
