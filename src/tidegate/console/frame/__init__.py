"""Shared by all pages: sessions, rights, templates, live streams, paging, the database. No page."""
