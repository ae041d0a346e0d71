"""Creates the content of a bundle: model, card, statement, thresholds, test vectors, materials."""
