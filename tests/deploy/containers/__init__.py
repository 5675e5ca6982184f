"""docker-compose.yml for real, on a Docker engine: images, faults and audits. No part of pytest."""
