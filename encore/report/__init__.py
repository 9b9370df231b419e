"""The report: one self-contained page about some ratings, and its figures as files.

The package is called like its function `encore.report.write_report.report`:
``encore.report(ratings, out=None)`` writes a folder, ``encore.report(ratings, "report.html")`` the
page alone. Ratings are a path, a data frame or an `Analysis`.
"""

from encore.core.callable_package import make_callable

make_callable(__name__, function="encore.report.write_report.report")
