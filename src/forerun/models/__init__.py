"""Model families, one file each, and their building blocks. A family declares its state and never its layout."""
