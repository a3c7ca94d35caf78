"""Views of a pool with another library's API: one module per library, without semantics of their own."""
