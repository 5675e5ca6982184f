"""H2FDP: devices behind edge servers, which sum their devices' steps several times a round."""
