"""`python -m encore.doctor`: the same table when `encore` itself does not start any more."""

from __future__ import annotations

import typer

from encore.cli.doctor import doctor

if __name__ == "__main__":
    typer.run(doctor)
