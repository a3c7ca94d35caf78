"""The backends: each module or package here runs the envs of a pool in its own way (base.py has the contract)."""
