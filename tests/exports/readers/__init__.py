"""Other programs that read an export, each in its own environment."""
