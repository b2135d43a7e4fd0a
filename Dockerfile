# What a node of ClusterEnv runs in:  docker build --tag clusterenv:0.1.0 .
# With the packages of your environments:  docker build --build-arg PACKAGES="gymnasium[box2d] my-envs" ...
FROM python:3.11-slim

ARG PACKAGES=""

WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
# The head exports policies to graphs; a node runs these, and never needs torch.
RUN pip install --no-cache-dir --constraint constraints.txt ".[onnx]" $PACKAGES \
 && rm -rf /build/*

# The number that the pods ask for; a name alone would not tell Kubernetes that it is not root.
RUN groupadd --gid 10001 clusterenv && useradd --uid 10001 --gid 10001 --create-home clusterenv
USER 10001:10001
WORKDIR /home/clusterenv

CMD ["clusterenv", "--help"]
