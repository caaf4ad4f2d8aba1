"""The networked server: connections, commands, configuration, command line."""
