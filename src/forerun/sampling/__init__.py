"""Pure functions from logits and noise to tokens. No state, no order dependence; see the modules."""
