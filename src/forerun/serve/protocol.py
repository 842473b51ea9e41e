"""HTTP/1.1 as uvicorn reads it, with the API's own words for what is no HTTP. Knows the wire and the shape of errors; knows no route."""

from __future__ import annotations

import json

from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.serve.problems import refused


class Protocol(H11Protocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no request, and close: what follows them cannot be read either."""
        problem = refused(400, "bad_request", msg, "send HTTP/1.1")
        body = json.dumps(problem.body()).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()
