"""The demonstration: an agent's conversation with real server processes, which are stopped and killed between its turns."""
