"""Mechanisms for tables of uneven classes, from the papers on class imbalance, and the files that they share."""
