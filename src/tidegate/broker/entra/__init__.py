"""Microsoft Entra ID, and other OpenID issuers: whom the service trusts, and what their tokens allow.

``issuers`` is configuration and imports nothing heavy; ``tokens`` verifies, and is imported only where an
issuer is trusted. Keys are fetched in ``tidegate.server``.
"""
