"""The demonstration: an agent's conversation with real server processes that are stopped and killed between its turns."""
