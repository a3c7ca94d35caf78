"""The contracts between all parts: Pool, Executor, Batch, spec, faults, and the registries of backends and families."""
