"""Token-level losses in pure torch: each one a small frozen dataclass that returns a sum."""
