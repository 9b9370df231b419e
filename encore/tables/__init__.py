"""A study as tables: read-only SQL, a page to browse, files to publish."""
