"""Turns a file into a fitted model: data, training, draws, scores."""
