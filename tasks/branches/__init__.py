"""Mechanisms as branches of a comparison: their stages, their outcome, their plan."""
