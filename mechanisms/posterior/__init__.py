"""Posteriors over a model's parameters: their moments, risks, sensitivity, and whether the estimate
holds.
"""
