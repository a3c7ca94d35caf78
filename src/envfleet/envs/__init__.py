"""Families of environments: what Python adds to the native ones (names, translation, pictures)."""
