"""A study as a database: tables for SQL, a guarded shell, named queries."""
