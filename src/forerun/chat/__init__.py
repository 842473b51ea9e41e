"""A conversation in the terminal: typed input, and the saved transcript. Knows neither HTTP nor the model."""
