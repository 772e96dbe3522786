"""Models that kolb can bring by name, and the tokenizers that it builds."""
