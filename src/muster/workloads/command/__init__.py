"""Any command of the user's, on every host or as every rank. What it trains is its own affair."""
