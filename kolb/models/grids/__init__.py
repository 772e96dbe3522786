"""The embedded base model: its folder, the vocabulary that it reads, and how it starts out."""
