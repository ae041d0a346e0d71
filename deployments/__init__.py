"""Holds the files that ship with the program: profiles, branches, published figures, suites, deployments."""
