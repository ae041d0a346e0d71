"""Builds, seals, signs, packs, verifies, registers and revokes bundles, the folders that partners
receive.
"""
