"""`python -m encore.cli`: the same as the `encore` script."""

from __future__ import annotations

from encore.cli.app import main

if __name__ == "__main__":
    main()
