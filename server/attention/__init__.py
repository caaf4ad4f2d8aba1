"""Attention where the rows are: which rows a query means, what is kept ready, and who computes when."""
