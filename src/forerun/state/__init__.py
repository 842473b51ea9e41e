"""The state of a model after n tokens: its specification, its live form (Cache), its stored form (records)."""
