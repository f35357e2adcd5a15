"""From a model to a Net: import, passes, plan, code, and programs kept on disk for later starts."""
