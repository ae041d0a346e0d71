"""From a file to a fitted posterior: data, training, passes over draws, evaluation."""
