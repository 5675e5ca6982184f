"""Tests of docker-compose.yml on a Docker engine, with faults and audits; pytest does not run them."""
