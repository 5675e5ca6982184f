"""H2FDP, hierarchical federated learning: edge servers sum their devices' steps several times a round."""
