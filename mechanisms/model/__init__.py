"""Classifiers in plain torch: encoder and head, inputs, training, export, figures of merit."""
