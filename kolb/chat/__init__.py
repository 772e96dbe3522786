"""Messages to tokens and back: chat templates, tool calls, batching."""
