"""Privacy ledgers of the server and of clients, and the conditions of a run on which both agreed."""
