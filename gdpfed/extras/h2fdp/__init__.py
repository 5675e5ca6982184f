"""H2FDP: devices behind edges, which sum among themselves several times a round."""
