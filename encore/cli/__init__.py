"""The `encore` command: one file per subcommand, `app.py` puts them together."""
