"""Serves a released autocoder over HTTP, closed by a key; requests are not logged."""
