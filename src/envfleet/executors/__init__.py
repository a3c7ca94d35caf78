"""What runs the envs of a pool; one module each."""
