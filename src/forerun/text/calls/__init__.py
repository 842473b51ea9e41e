"""How models write calls of tools, a way of writing a file. Pure and incremental: the result does not depend on how the text is cut."""
