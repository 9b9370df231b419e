"""The ground every room stands on: configs and options, files, terminal, pretrained files, errors."""
