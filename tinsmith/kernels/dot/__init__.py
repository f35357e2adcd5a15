"""Products of matrices: one register-tiled skeleton for all of them (`skeleton`)."""
