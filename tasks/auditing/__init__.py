"""Audits claims: membership tests, reruns, lower bounds, findings."""
