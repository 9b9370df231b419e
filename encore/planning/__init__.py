"""What a rating run will take, and what it took."""
