"""What a model remembers after n tokens: its specification, its live form (Cache), its stored form (records)."""
