"""Audits privacy claims: membership tests, reruns, lower bounds, findings."""
