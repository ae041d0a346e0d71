"""Checks what may be released: names, kinds and fields of a bundle's files, and forbidden contents.
Anything unknown is refused.
"""
