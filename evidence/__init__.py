"""Evidence: what is claimed about learning, and the commands that measure it. ``python -m evidence.erl``."""
