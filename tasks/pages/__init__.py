"""What the pages share: templates, style, figures."""
