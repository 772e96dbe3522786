"""The run directory as an interface: written by the loop, read by anything."""
