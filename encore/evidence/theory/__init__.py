"""The paper's Theorem 1 on ratings: what a Bradley–Terry loss teaches about rules' weights."""

from __future__ import annotations

from encore.evidence.theory.theorem import Theory, theory

__all__ = ["Theory", "theory"]
