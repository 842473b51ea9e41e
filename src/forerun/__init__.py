"""forerun: a local inference server for coding agents that never reads a conversation twice."""

__version__ = "0.1.0.dev0"
