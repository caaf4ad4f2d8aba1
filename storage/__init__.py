"""Schema, pages, catalog, eviction: where rows live and what is visible."""
