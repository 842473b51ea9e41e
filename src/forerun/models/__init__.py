"""Model families, one file each, and what they are built of. A family declares what must be kept and never says how it is arranged."""
