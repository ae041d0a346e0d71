"""The work behind commands and flows: fit, compare, audit, plan, release, and code with a bundle.

Each folder is one job. `running` has the shared parts: contexts, stages with their caches, progress
and failures.
"""
