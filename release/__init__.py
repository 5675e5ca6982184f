"""Makes the published form of this project from the checkout, for a release as in RELEASING.md."""
