"""Group-level maths in plain Python floats, and trajectories turned into training examples."""
