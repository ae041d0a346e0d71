"""Classifiers in plain torch: encoder and head, inputs, training, export, and quality metrics."""
