"""Links as objects: their kinds, how they are read, and the plans that bring them about (T2)."""
