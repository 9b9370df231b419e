"""The report: one self-contained page about a set of ratings, and its figures as files.

`gather` collects what there is to say, `charts` turns it into figures, `canvas` draws them,
`page` puts them into HTML and `write` puts all of it on disk.
"""
