# envfleet with its command line, rendering and Ray: docker build -t envfleet . && docker run --rm envfleet doctor
# tools/check_dockerfile.py runs the RUN lines in a virtual environment (make docker-check).
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/envfleet-*.whl)[cli,render,ray]" && rm -r /wheels
# Not root: an env is code. Compiled envs are cached in the user's home.
RUN useradd --create-home envfleet
USER envfleet
WORKDIR /home/envfleet
RUN envfleet doctor
ENTRYPOINT ["envfleet"]
CMD ["doctor"]
