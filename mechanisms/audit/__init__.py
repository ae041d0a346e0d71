"""Audits of whole mechanisms: lower bounds on epsilon, parallel reruns, and tests with canary
gradients.
"""
