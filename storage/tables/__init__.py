"""Reads and writes CSV, Parquet and JSON Lines row by row in bounded memory, for training and
coding.
"""
