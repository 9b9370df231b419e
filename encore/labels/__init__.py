"""People's labels of single responses under single rules, and how far a judge agrees."""
