"""Posteriors over the parameters of a model: their moments, risks, sensitivity, and the rounds of a
pseudo posterior.
"""
