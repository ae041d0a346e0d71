"""Diagnoses a finished retrain, for a review board."""
