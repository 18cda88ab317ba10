"""The console: what a service shows in a browser, at the HTTP port's ``/``.

Starlette, Jinja2, htmx and server-sent events; no build step, and nothing from another host. One folder per
page, each over ``frame``; it asks broker, sql and processor itself, and knows no protocol.
"""
