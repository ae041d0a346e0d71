"""Makes the content of a bundle: model, card, statement, thresholds, golden answers, materials."""
