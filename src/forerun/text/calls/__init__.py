"""Parsers of tool calls, one file per format. Pure and incremental: the result does not depend on how the text is cut."""
