"""What the pages share: style, figures, tables."""
