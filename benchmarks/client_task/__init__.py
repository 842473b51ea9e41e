"""Parts of benchmarks/clients.py: the task, the scripted answers, the server process, the clients, and the analysis of what was reused."""
