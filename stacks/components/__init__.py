"""What layers are made of: one component a file, with the class of its arguments."""
