"""Text that learns: the versioned library of experiences and its rendering."""
