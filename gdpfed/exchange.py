"""What travels between server and client: message types and record names, the one place both sides read.

Everything is either public (parameters, keys, the model), sealed for another client, or masked. Nothing that
a client computes from its data leaves it in clear: no loss, no example count, no data-dependent field.
"""

JOIN, OFFER, BEGIN = "join", "offer", "begin"
ADVERTISE, SHARE, MASKED, CHECK, UNMASK = "advertise", "share", "masked", "check", "unmask"
PLAIN = "plain"

CLIENT_RECORD = "client"
SESSION_RECORD = "session"
ORDER_RECORD = "order"
THETA_RECORD = "theta"
ROSTER_RECORD = "roster"
REFUSAL_RECORD = "refusal"
UPDATE_RECORD = "update"
TERMS_RECORD = "terms"
ROUND_RECORD = "round"
