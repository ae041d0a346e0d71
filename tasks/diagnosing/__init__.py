"""A closer look at a finished retrain, for a review board."""
