"""Renders pages: templates, style, figures."""
