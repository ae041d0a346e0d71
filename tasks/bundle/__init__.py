"""What a bundle holds: model, card, statement, thresholds, golden answers, materials."""
