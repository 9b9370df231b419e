"""ENCORE: audit safety rules and compose multi-head reward models."""

__version__ = "0.1.0"
