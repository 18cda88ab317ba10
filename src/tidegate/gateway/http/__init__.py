"""HTTP clients: publishing, administration, health and metrics, and the server they share."""
