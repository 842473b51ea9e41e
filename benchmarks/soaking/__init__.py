"""Parts of the soak test: the servers' lives, and the clients. Not a benchmark."""
