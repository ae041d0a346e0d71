"""What mechanisms for tables share: columns binned and undone, linear models of unit records, trees, fits made once."""
