"""What an answer may say: grammars of formats and of tool calls, and the state of one as tokens come. Loads no MLX."""
