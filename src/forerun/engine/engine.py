"""The facade of the engine: what serve and cli see of the machine that runs requests."""
