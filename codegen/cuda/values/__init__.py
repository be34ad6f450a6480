"""What threads load, compute, combine and store of their own points."""
