"""Attacks whole mechanisms: lower bounds on epsilon, trials of whole mechanisms, fits without a
record.
"""
