"""From a name to a pool: make() and its siblings, registration, options, and compiled envs."""
