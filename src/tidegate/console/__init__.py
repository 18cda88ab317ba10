"""The console: what a service shows in a browser, at the HTTP port's ``/``.

Starlette, Jinja2, htmx and server-sent events; no build step, and nothing from another host. It sees the
service only through the Protocols of ``console.backend``, which ``server.console`` implements.
"""
