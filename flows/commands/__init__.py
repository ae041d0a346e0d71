"""Defines the commands of `autocoder`, one group per file."""
