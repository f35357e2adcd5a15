"""From a model to a Net: import, passes, plan, code, and what is kept on disk between starts."""
