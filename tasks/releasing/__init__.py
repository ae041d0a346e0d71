"""Releases a plan: the claim, the approvals, the gate, the one draw, the ledger's rows."""
