"""A real model without a model hub, and the demonstration that uses it."""
