"""One paper, one file: each module's ``METHOD`` is the method with the paper's own numbers."""
