"""Turns a file into a fitted posterior: data, training, passes over draws, evaluation."""
