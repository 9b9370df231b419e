"""The report: one self-contained page about some ratings, and its figures as files.

`encore.report(…)` calls `encore.report.write_report.report`.
"""

from encore.core.callable_package import make_callable

make_callable(__name__, function="encore.report.write_report.report")
