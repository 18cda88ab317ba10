"""The homes in a browser: their list and each resident's page, from the summaries."""
