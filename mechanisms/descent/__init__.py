"""Noisy gradient descent: the steps that the private methods share, and their resumption after an
interruption.
"""
