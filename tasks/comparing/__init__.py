"""Branches side by side: summary, report, published figures."""
