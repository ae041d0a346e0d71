"""Commands of the `autocoder` command line, one group a file."""
