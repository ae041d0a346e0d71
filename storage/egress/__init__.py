"""Checks what may leave: names, kinds and fields of a bundle's files, and contents that are forbidden. Fails closed."""
