"""The console: the service's web pages, at ``/`` of the HTTP port.

Starlette, Jinja2, htmx and server-sent events; no build step, and no files from other hosts. Each page has a
folder, on top of ``frame``, and calls broker, sql and processor directly.
"""
