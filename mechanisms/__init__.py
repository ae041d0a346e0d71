"""Differentially private training methods and their audits. Each method plans its noise, fits a
model, and reports the event from which its claim follows.

This package depends on neither Prefect nor a database. `autocoder` exports the names that users
import.
"""
