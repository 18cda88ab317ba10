"""The homes in a browser: the list of them, and what the resident of one sees, by the summaries."""
