"""From a float model to a quantised one: what is measured on data, and what is changed."""
