"""The small synthetic world that the demonstration judge knows: hand-written sentences, no data."""
