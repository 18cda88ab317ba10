"""Attack programs against a service of our own on loopback, and what a quiet user notices of each.

__main__   options, runs, exit code            attack      what every attack program is given
trial      one flood against one service       amqp_peer   AMQP as an attacker speaks it
service    the service as a process            anonymous   floods that need no token
canary     the quiet user, a process           tenants     floods by somebody with a key
report     bounds, table, JSON                 web         floods over HTTP, WebSocket and TLS
catalog    all floods
"""
