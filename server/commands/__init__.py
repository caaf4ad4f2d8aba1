"""One module for each family of commands: parse, apply, reply."""
