"""What all pages share: sessions and rights, templates, errors, live streams, paging, the database. No page."""
