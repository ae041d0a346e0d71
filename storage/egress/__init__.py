"""What may leave: names, kinds and fields of a bundle's files, and what no file may hold. Fails closed."""
