"""Labelled single responses: what people say of each under each rule, and how far a judge agrees."""
