"""From a plan to a release: the claim, the approvals, the gate, the one draw, the ledger's rows."""
