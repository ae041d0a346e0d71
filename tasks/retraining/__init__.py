"""The main job: what a retrain makes of its records, and what of it is released."""
