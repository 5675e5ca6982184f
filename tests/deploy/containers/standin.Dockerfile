# Takes the place of flwr/supernode or flwr/superexec where no registry can be reached: Flower from PyPI in
# /python/venv, run by user 49999 in /app, which is what docker-compose.yml and deploy/Dockerfile rely on.
ARG BASE
FROM ${BASE}
ARG FLOWER
COPY trusted.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PATH=/python/venv/bin:$PATH PYTHONUNBUFFERED=1 LANG=C.UTF-8
RUN python3 -m venv /python/venv \
    && /python/venv/bin/pip install --no-cache-dir --quiet "flwr==${FLOWER}" \
    && useradd --uid 49999 --home-dir /app --create-home app
WORKDIR /app
ENV HOME=/app
USER app
ARG PROGRAM
ENV PROGRAM=${PROGRAM}
ENTRYPOINT ["/bin/sh", "-c", "exec \"$PROGRAM\" \"$@\"", "--"]
