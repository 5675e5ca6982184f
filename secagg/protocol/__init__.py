"""The protocol of one secure sum: the messages between server and clients, their order, and all checks.

Its words:

* member: a client that is asked in the sum, by its number there. U1 are the members that advertised keys, U2
  those that also shared secrets (contributors), U3 those whose vectors are in the sum (survivors).
* dealer, holder: a member that splits its secrets among its neighbours; a neighbour that has a share of them.
* complaint: a member says that the shares of a dealer do not open.
* orphan: a lost member of whose secrets too few survivors hold shares; no key of it comes back.
* strike: one sum in which a client was at fault, beyond doubt (`ServerSession.blamed`).
"""
