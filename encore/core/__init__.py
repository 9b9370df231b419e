"""The ground of every room: configs, options, files, terminal, pretrained files, errors."""
