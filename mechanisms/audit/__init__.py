"""What an attacker can tell: lower bounds on epsilon, trials of whole mechanisms, fits without a record."""
