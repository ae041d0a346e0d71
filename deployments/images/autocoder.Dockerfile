# For server, services and workers: the pinned versions of requirements.lock, nothing fetched at run time.
# Named by its whole version; docs/how-to/operate.md says how to add the digest.
FROM python:3.11.14-slim-trixie
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# The CPU build of torch; docker-compose.yml builds the GPU worker's image with PyPI's, which is for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /app
COPY requirements.lock pyproject.toml LICENSE ./
COPY deployments/images/slim.sh deployments/images/imported.txt /build/
COPY scripts/hashed_install.py scripts/
# The packages before the code, with empty folders in its place, and an empty page that their builder asks for: a change of
# code or of a page then copies that alone.
# torch by itself, from its index; what it needs comes with the rest. What no worker opens is removed in the same layer.
# Each by the hash of the lock file, but torch, of which a site chooses the build.
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep -E '^torch==' requirements.lock)" \
 && for name in autocoder flows tasks mechanisms storage service deployments; do mkdir "$name" && touch "$name/__init__.py"; done && touch README.md \
 && python scripts/hashed_install.py train,minilm,postgres,stack,s3,kubernetes \
 && bash /build/slim.sh \
 && useradd --create-home --uid 10001 autocoder \
 && install -d -o autocoder -m 0700 /workspace /workspace/private && install -d -o autocoder /workspace/bundles
# What is installed, in CycloneDX, by a tool that is not: on the path of its own process alone, and removed.
RUN python scripts/hashed_install.py --tool cyclonedx-bom /build/sbom \
 && PYTHONDONTWRITEBYTECODE=1 python -c 'import runpy, sys; sys.path.insert(0, "/build/sbom"); runpy.run_module("cyclonedx_py", run_name="__main__")' \
      environment --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json "$(command -v python)" \
 && rm -r /build/sbom
COPY autocoder autocoder
COPY flows flows
COPY tasks tasks
COPY mechanisms mechanisms
COPY storage storage
COPY deployments deployments
COPY service service
COPY deployments/images/entrypoint.sh /usr/local/bin/entrypoint.sh
# Whatever the umask of the checkout was.
RUN python -m compileall -q autocoder flows tasks mechanisms storage service && chmod -R a+rX /app /usr/local/bin/entrypoint.sh
# Which code this is, for the ledger; without it a policy with require_clean_code refuses every release.
ARG COMMIT=
RUN printf '%s\n' "$COMMIT" > COMMIT
# In place of a home: the root file system is read-only, /tmp alone is not (docker-compose.yml).
ENV HOME=/tmp PREFECT_HOME=/tmp/prefect MPLCONFIGDIR=/tmp/matplotlib PYTHONDONTWRITEBYTECODE=1
USER 10001
ENTRYPOINT ["bash", "/usr/local/bin/entrypoint.sh"]
