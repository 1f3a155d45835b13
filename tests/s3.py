"""An S3 server on localhost, in this process, for tests of what lies on an object store."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow.fs import FileSystem


@contextmanager
def s3_server() -> Iterator[str]:
    """Address of a server, as host:port. Its buckets end with it."""
    from moto.moto_api._internal.models import moto_api_backend
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"{host}:{port}"
    finally:
        moto_api_backend.reset()
        server.stop()


def bucket(server: str, name: str) -> str:
    """URI of a new bucket."""
    query = f"scheme=http&endpoint_override={server}&allow_bucket_creation=true&region=us-east-1"
    fs, _ = FileSystem.from_uri(f"s3://{name}?{query}")
    fs.create_dir(name)
    return f"s3://{name}?{query.replace('&allow_bucket_creation=true', '')}"
