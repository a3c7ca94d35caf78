"""Views of a pool in someone's dialect; one module each, no semantics of their own."""
