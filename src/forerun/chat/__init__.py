"""A conversation in the terminal: what is typed, and what is kept of it. Knows neither wire nor model."""
