"""What a command or a flow does: fit and compare, audit, plan and release, code with a bundle, and
the pages of each.

Each folder is one job; `running` has what they share: contexts, stages with their caches, progress
and failures.
"""
