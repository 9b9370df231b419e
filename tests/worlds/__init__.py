"""Builders that several folders of tests share: studies, ratings, judges, models, tables."""
