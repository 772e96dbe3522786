"""Environments: one module each, found by name (``environment = "grid_text"``) or by dotted path."""
