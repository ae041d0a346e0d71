"""The commands of `autocoder`, one group per file."""
