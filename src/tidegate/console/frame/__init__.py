"""What all pages share: sessions, rights, templates, live streams, paging, the database. No page."""
