"""What commands share: connections, options, output, completion, exit codes."""
