"""Give a study to others: one database file for SQL clients, one folder as a data set."""
