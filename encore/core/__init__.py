"""Base layer of all rooms: configs, options, files, terminal output, model files, errors."""
