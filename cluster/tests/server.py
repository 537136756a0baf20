"""A server with the interface of S3 on 127.0.0.1, for tests."""

import logging
import os

import boto3
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

ACCOUNT = "123456789012"


class Server:
    """The server, its bucket `runs`, and the environment in which programs find it."""

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.moto.start()
        address = "http://%s:%d" % self.moto.get_host_and_port()
        self.environment = dict(
            os.environ,
            AWS_ACCESS_KEY_ID="name",
            AWS_SECRET_ACCESS_KEY="secret",
            AWS_REGION="us-east-1",
            AWS_ENDPOINT=address,
            AWS_ALLOW_HTTP="true",
        )
        self.client = boto3.client(
            "s3",
            endpoint_url=address,
            region_name="us-east-1",
            aws_access_key_id="name",
            aws_secret_access_key="secret",
        )
        self.client.create_bucket(Bucket="runs")

    def stop(self):
        self.moto.stop()

    def keys(self):
        """All that is in the bucket, as the server keeps it."""
        return s3_backends[ACCOUNT]["aws"].buckets["runs"].keys

    def names(self, prefix):
        """What is below a prefix, by its name behind it."""
        return sorted(name[len(prefix) :] for name in list(self.keys()) if name.startswith(prefix))

    def put(self, key, body):
        self.client.put_object(Bucket="runs", Key=key, Body=body)

    def get(self, key):
        return self.client.get_object(Bucket="runs", Key=key)["Body"].read()

    def delete(self, key):
        self.client.delete_object(Bucket="runs", Key=key)
