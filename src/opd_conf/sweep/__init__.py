"""Sweeps: every cell composed and checked before any starts, each in a folder of its own."""
