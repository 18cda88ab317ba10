"""The composition root: typed settings, certificates, and the app that builds and stops the service."""
