"""The embedded model that keeps notes: its folder, its corpus, its prompts, and how it starts out."""
