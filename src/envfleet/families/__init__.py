"""The families of environments, one module or folder each."""
