"""What is measured beside a claim: membership, reruns, bounds, findings."""
