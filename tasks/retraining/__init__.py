"""Retrains a model: from records to a release plan, and the dry run."""
